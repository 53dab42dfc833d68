/* text/scan.h - hand-written scanners for the word patterns that nearly every byte-level tokenizer
 * has.
 *
 * Each gives exactly the words that PCRE2 gives for its pattern (tests/unit/text/test_scan.c
 * compares them on random text), at many times the speed. A scanner returns the bytes (>= 1) of the
 * first word of the well-formed text [p, end), p < end. No state, any thread. */
#ifndef TEXT_SCAN_H
#define TEXT_SCAN_H

#include <stddef.h>

struct char_classes;

typedef size_t scan_fn(const struct char_classes *cc, const unsigned char *p,
                       const unsigned char *end);

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+   (GPT-2) */
scan_fn scan_gpt2;
/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 * ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+| \s+(?!\S)|\s+   (Llama 3, LFM2) */
scan_fn scan_llama3;
/* The same with \p{N} instead of \p{N}{1,3}   (Qwen2, Qwen3) */
scan_fn scan_qwen2;

/* The scanner for a pattern, or NULL when the pattern is none of these, to the letter. */
scan_fn *scan_for_pattern(const char *pattern);
/* The pattern of ByteLevel with use_regex. */
extern const char scan_gpt2_pattern[];
#endif
