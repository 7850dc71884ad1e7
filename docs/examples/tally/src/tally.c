#include "tally.h"

#include <ctype.h>

void tally_add(struct tally *tally, const char *text, size_t length) {
    int in_word = 0;
    for (size_t i = 0; i < length; i++) {
        int space = isspace((unsigned char)text[i]);
        tally->bytes++;
        tally->lines += text[i] == '\n';
        tally->words += !space && !in_word;
        in_word = !space;
    }
}
