#ifndef TALLY_H
#define TALLY_H

#include <stddef.h>

struct tally {
    unsigned long lines, words, bytes;
    int in_word;
};

/* Adds `length` bytes of text; a word may go on from one call to the next. */
void tally_add(struct tally *tally, const char *text, size_t length);

#endif
