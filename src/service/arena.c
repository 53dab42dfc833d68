#include "service/arena.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "engine/image.h"
#include "model/config.h"
#include "service/service.h"
#include "service/state.h"
#include "service/times.h"
#include "tensor/weights.h"

#define SHM_DIR    "/dev/shm"
#define SHM_PREFIX "wsrv-"

int arena_permit(const struct image *im, const struct settings *set, struct err *e)
{
    if (set->shm_group && fchown(im->shared_fd, (uid_t)-1, set->shm_gid) < 0)
        return err_io(e, "give the arena to group %s", set->shm_group);
    if (fchmod(im->shared_fd, (mode_t)set->shm_mode) < 0)
        return err_io(e, "set the mode of the arena");
    return 0;
}

static json_t *tensor_entry(const char *name, size_t name_len, const struct st_tensor *t,
                            size_t data_start, const char *shared_with)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s%, s:s, s:o, s:I, s:I, s:s, s:o}", "name", name, name_len, "dtype",
                     dtype_name(t->dtype), "shape", shape, "offset",
                     (json_int_t)data_start + (json_int_t)t->offset, "nbytes", (json_int_t)t->bytes,
                     "device", "cpu", "shared_with", json_text(shared_with));
}

static json_t *tensor_table(const struct image *im)
{
    static const char head[] = "lm_head.weight", embed[] = "model.embed_tokens.weight";
    const struct weights *w = im->weights;
    const struct st_tensor *tied = weights_find(w, embed);
    json_t *table = json_array();

    for (size_t i = 0; i < w->n; i++)
        json_array_append_new(table, tensor_entry(w->tensors[i].name, w->tensors[i].name_len,
                                                  &w->tensors[i], w->data_start, NULL));
    if (im->files->config->tied && tied && !weights_find(w, head))
        json_array_append_new(table,
                              tensor_entry(head, sizeof head - 1, tied, w->data_start, embed));
    return table;
}

static json_t *arena_object(const struct service *s, const struct image *im)
{
    bool memfd = im->memory == IMAGE_MEMFD;
    char path[128], mode[8];

    if (memfd)
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), im->shared_fd);
    else
        snprintf(path, sizeof path, SHM_DIR "%s", im->shm_name);
    snprintf(mode, sizeof mode, "%04o", (unsigned)s->settings->shm_mode);
    return json_pack("{s:s, s:o, s:s, s:I, s:I, s:s, s:s}", "transport",
                     memfd ? "memfd" : "posix_shm", "shm_name", json_text(im->shm_name), "path",
                     path, "bytes", (json_int_t)im->weights->bytes, "generation",
                     (json_int_t)s->weights->generation, "byte_order", "little", "mode", mode);
}

json_t *arena_answer(struct service *s, const struct image *im, const struct served *served,
                     const char *attachment_id)
{
    const struct settings *set = s->settings;
    json_t *o = json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:o, s:s, s:I, s:I}", "attachment_id", attachment_id, "protocol",
        1, "name", served->name, "origin", served->checkpoint ? "checkpoint" : "model",
        "base_model", served->base_model, "manifest_sha256", json_text(served->manifest_sha256),
        "weights_state", condition_name(s->weights->condition), "steps_since_load",
        (json_int_t)s->weights->steps_since_load, "commits", (json_int_t)served->commits);

    if (!o)
        return NULL;
    json_object_set_new(o, "heartbeat_timeout_s", json_real(set->heartbeat_timeout_s));
    json_object_set_new(o, "heartbeat_interval_s", json_real(set->heartbeat_timeout_s / 3));
    json_object_set_new(o, "max_hold_s", json_real(set->quiesce_max_hold_s));
    json_object_set_new(o, "commit_watchdog_s", json_real(set->commit_watchdog_s));
    json_object_set_new(o, "model_dir", json_text(im->files->dir));
    json_object_set_new(o, "arena", arena_object(s, im));
    json_object_set_new(o, "tensors", tensor_table(im));
    return o;
}

/* ---- leftovers of dead servers ---- */

/* A living server holds a shared lock on each of its arenas' descriptors; who gets the exclusive
 * one finds it orphaned. */
static void sweep_one(int dir, const char *name)
{
    struct stat st;
    int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(dir, name, 0);
    close(fd);
}

void arena_sweep(const char *boot_id)
{
    DIR *d = opendir(SHM_DIR);
    struct dirent *entry;

    if (!d)
        return;
    while ((entry = readdir(d)))
        if (strncmp(entry->d_name, SHM_PREFIX, sizeof SHM_PREFIX - 1) == 0 &&
            strncmp(entry->d_name + sizeof SHM_PREFIX - 1, boot_id, strlen(boot_id)) != 0)
            sweep_one(dirfd(d), entry->d_name);
    closedir(d);
}
