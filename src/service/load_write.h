/* service/load_write.h - the bytes of a load: into the resident's memory, or read a second time. */
#ifndef SERVICE_LOAD_WRITE_H
#define SERVICE_LOAD_WRITE_H

struct err;
struct image;
struct load_op;

/* [engine] Fills `to`, which has the layout of the checkpoint: from the verified bytes with every
 * core, or, where memory could not keep them, from the file. -1: some of the bytes may be written.
 */
int load_write(struct load_op *op, struct image *to, struct err *e);

/* Reads and hashes the file again into fresh memory, after the old image was let go. Owned image,
 * or NULL. */
struct image *load_read_again(struct load_op *op, struct err *e);
#endif
