/* Foreign bytes as a GGUF file: opened, every value looked at, small tensors read, and planned for
 * an import as far as it goes. Nothing may be read outside the file, whatever its counts and
 * offsets say. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "tensor/gguf_arch.h"
#include "tensor/gguf_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static void look_up(const struct gguf *g, const char *key)
{
    struct gguf_str text = {0}, *texts = NULL;
    int64_t number, *numbers = NULL;
    struct err e = {0};
    size_t n = 0, sum = 0;
    double real;
    bool truth;

    gguf_get_int(g, key, &number, &e);
    gguf_get_float(g, key, &real, &e);
    gguf_get_bool(g, key, &truth, &e);
    if (gguf_get_str(g, key, &text, &e) == 0)
        for (size_t i = 0; i < text.len; i++)
            sum += (unsigned char)text.s[i];
    if (gguf_get_strings(g, key, &texts, &n, &e) == 0)
        for (size_t i = 0; i < n; i++)
            sum += texts[i].len ? (unsigned char)texts[i].s[texts[i].len - 1] : 0;
    gguf_get_ints(g, key, &numbers, &n, &e);
    CHECK(sum <= (size_t)-1 / 2);
    free(texts);
    free(numbers);
}

static void look_at_keys(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_keys(g) && i < 100; i++) {
        enum gguf_type type;
        struct gguf_str key = gguf_key_at(g, i, &type);
        char *name = strndup(key.s, key.len);

        CHECK(name);
        look_up(g, name);
        free(name);
    }
}

static void look_at_tensors(const struct gguf *g, size_t size)
{
    float values[1024];
    struct err e = {0};

    for (size_t i = 0; i < gguf_n_tensors(g) && i < 100; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        CHECK(t->offset <= size && t->bytes <= size - t->offset);
        CHECK(gguf_type_name(t->type));
        if (t->elements <= 1024)
            gguf_read_f32(g, t, 0, t->elements, values, &e);
    }
}

static void plan_import(const struct gguf *g)
{
    struct gguf_params p = {0};
    struct gguf_mapped *mapped = NULL;
    struct err e = {0};
    size_t n = 0;

    if (gguf_params_read(g, &p, &e) < 0)
        return;
    if (gguf_arch_map(g, &p, &mapped, &n, &e) == 0)
        CHECK(n <= gguf_n_tensors(g));
    json_decref(gguf_config(&p));
    json_decref(gguf_generation_config(&p));
    json_decref(gguf_tokenizer(g, &p, &e));
    json_decref(gguf_tokenizer_config(g, &p, &e));
    free(mapped);
    gguf_params_release(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    struct err e = {0};
    struct gguf *g;

    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    g = gguf_open(fd, &e);
    if (g) {
        look_at_keys(g);
        look_at_tensors(g, size);
        plan_import(g);
    } else {
        CHECK(e.code == ERR_FORMAT && e.msg[0]);
    }
    gguf_close(g);
    close(fd);
    return 0;
}
