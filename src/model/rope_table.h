/* model/rope_table.h - inside the room: cos and sin of every position, computed in double, kept as
 * float32. */
#ifndef MODEL_ROPE_TABLE_H
#define MODEL_ROPE_TABLE_H

struct err;
struct rope_config;

struct rope_table {
    double *inv; /* [half] inverse frequencies, scaled */
    int half;    /* head_dim / 2 */
    int n;       /* positions that are filled */
    int capacity;
    float *cos, *sin; /* [n][half] */
};

int rope_table_init(struct rope_table *t, const struct rope_config *c, int head_dim, struct err *e);
void rope_table_release(struct rope_table *t); /* a zeroed table is allowed */
/* Makes positions [0, n) available; moves the arrays. */
int rope_table_grow(struct rope_table *t, int n, struct err *e);

/* Inverse frequency j of head_dim/2: theta^(-2j/head_dim), scaled as the type says. */
double rope_inv_frequency(const struct rope_config *c, int head_dim, int j);
#endif
