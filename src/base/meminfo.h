/* base/meminfo.h - how much memory this process could still take.
 *
 * The smaller of MemAvailable (/proc/meminfo) and the room that the control group leaves: version 2
 * memory.max - memory.current at every level up to the root, version 1 memory.limit_in_bytes; file
 * cache that the group could give back counts as room. Any thread; reads files each time. */
#ifndef BASE_MEMINFO_H
#define BASE_MEMINFO_H

#include <stddef.h>

/* 0, or -1: neither can be read, *bytes is untouched. */
int meminfo_available(size_t *bytes);
#endif
