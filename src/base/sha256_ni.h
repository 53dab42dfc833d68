/* base/sha256_ni.h - inside the room: the block function of SHA-256 on two messages at once.
 *
 * One message is a chain in which every instruction waits for the one before it, so a core is half
 * idle; two in step fill it (FIPS 180-4 for the function, Intel's SHA extensions for the way). */
#ifndef BASE_SHA256_NI_H
#define BASE_SHA256_NI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool sha256_ni_usable(void); /* asks the processor: keep the answer */
/* state[k]: eight words a..h; advanced over n blocks of 64 bytes of bytes[k]. Only where usable. */
void sha256_ni_pair(uint32_t *const state[2], const unsigned char *const bytes[2], size_t n);
#endif
