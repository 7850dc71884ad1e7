#include "tally.h"

#include <stdio.h>

int main(void) {
    struct tally tally = {0};
    char text[4096];
    size_t length;
    while ((length = fread(text, 1, sizeof text, stdin)) > 0)
        tally_add(&tally, text, length);
    printf("%lu lines, %lu words, %lu bytes\n", tally.lines, tally.words, tally.bytes);
    return ferror(stdin) != 0;
}
