#include "store/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/listing.h"
#include "store/roots.h"

static const char temporary[] = ".tmp-";

static void note(struct sweep_report *out, const struct err *why)
{
    if (out->failed++ == 0)
        snprintf(out->why, sizeof out->why, "%s", why->msg);
}

static void sweep_entry(int run_fd, const char *name, struct sweep_report *out)
{
    struct err why = {0};

    if (fs_remove_tree(run_fd, name, &why) == 0)
        out->removed++;
    else
        note(out, &why);
}

/* Consumes run_fd. */
static void sweep_run(int run_fd, struct sweep_report *out)
{
    DIR *d = fdopendir(run_fd);
    struct dirent *entry;

    if (!d) {
        close(run_fd);
        return;
    }
    while ((entry = readdir(d)))
        if (strncmp(entry->d_name, temporary, sizeof temporary - 1) == 0)
            sweep_entry(dirfd(d), entry->d_name, out);
    closedir(d);
}

static void sweep_dirs(DIR *root, dev_t mount, struct sweep_report *out)
{
    struct dirent *entry;

    while ((entry = readdir(root))) {
        int run_fd = listing_open_own_run(dirfd(root), entry->d_name, mount);

        if (run_fd < 0)
            continue;
        sweep_run(run_fd, out);
        /* Only an empty directory can be removed this way. */
        if (unlinkat(dirfd(root), entry->d_name, AT_REMOVEDIR) == 0)
            out->emptied++;
    }
}

int sweep_primary(const struct roots *r, struct sweep_report *out, struct err *e)
{
    int fd = roots_dir(r, ROOTS_PRIMARY, e);
    struct stat st;
    DIR *root;

    *out = (struct sweep_report){0};
    if (fd < 0)
        return -1;
    root = fdopendir(fd);
    if (!root || fstat(fd, &st) < 0) {
        err_io(e, "list the checkpoint root");
        if (root)
            closedir(root);
        else
            fs_close(fd);
        return -1;
    }
    rewinddir(root); /* the duplicate handle shares its position */
    sweep_dirs(root, st.st_dev, out);
    closedir(root);
    return 0;
}
