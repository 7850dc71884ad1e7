#include "../src/tally.h"

#include <stdio.h>
#include <string.h>

static int failed;

static void is(const char *name, unsigned long found, unsigned long wanted) {
    printf("%s %s (%lu)\n", found == wanted ? "ok    " : "FAILED", name, found);
    failed += found != wanted;
}

int main(void) {
    struct tally empty = {0}, text = {0}, split = {0};
    const char *words = "one two\nthree\n";
    tally_add(&empty, "", 0);
    tally_add(&text, words, strlen(words));
    tally_add(&split, "on", 2);
    tally_add(&split, "e two", 5);
    is("nothing has no words", empty.words, 0);
    is("lines are counted", text.lines, 2);
    is("words are counted", text.words, 3);
    is("bytes are counted", text.bytes, strlen(words));
    is("a word over two reads is one word", split.words, 2);
    return failed != 0;
}
