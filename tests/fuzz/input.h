/* SPDX-License-Identifier: Apache-2.0 */
/* What several targets share: inputs read as a program of small steps, and a
 * directory in memory that goes with the process. */
#ifndef SHEAF_TESTS_FUZZ_INPUT_H
#define SHEAF_TESTS_FUZZ_INPUT_H

#include "proto/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>

#define FUZZ_UNUSED __attribute__((unused))

/* Ends the run: an invariant does not hold. */
#define fuzz_must(condition)                                                   \
        do {                                                                   \
                if (!(condition)) {                                            \
                        dprintf(2, "%s:%d: not so: %s\n", __FILE__, __LINE__,  \
                                #condition);                                   \
                        abort();                                               \
                }                                                              \
        } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
        const uint8_t *data;
        size_t left;
};

/* The next bytes; what is missing at the end is zero. */
static FUZZ_UNUSED void fuzz_take(
        struct fuzz_input *in, void *ret_bytes, size_t len)
{
        size_t have = SHEAF_MIN(len, in->left);

        memset(ret_bytes, 0, len);
        if (have)
                memcpy(ret_bytes, in->data, have);
        in->data += have;
        in->left -= have;
}

static FUZZ_UNUSED uint8_t fuzz_u8(struct fuzz_input *in)
{
        uint8_t v;

        fuzz_take(in, &v, sizeof(v));
        return v;
}

static FUZZ_UNUSED uint16_t fuzz_u16(struct fuzz_input *in)
{
        uint16_t v;

        fuzz_take(in, &v, sizeof(v));
        return v;
}

static FUZZ_UNUSED uint32_t fuzz_u32(struct fuzz_input *in)
{
        uint32_t v;

        fuzz_take(in, &v, sizeof(v));
        return v;
}

static FUZZ_UNUSED uint64_t fuzz_u64(struct fuzz_input *in)
{
        uint64_t v;

        fuzz_take(in, &v, sizeof(v));
        return v;
}

static char fuzz_dir_path[64];

static FUZZ_UNUSED int fuzz_remove_one(
        const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path);
}

static FUZZ_UNUSED void fuzz_remove(const char *path)
{
        nftw(path, fuzz_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static FUZZ_UNUSED void fuzz_dir_end(void)
{
        fuzz_remove(fuzz_dir_path);
}

/* The directory's descriptor; made at the first call. */
static FUZZ_UNUSED int fuzz_dir(void)
{
        static int fd = -1;

        if (fd >= 0)
                return fd;
        snprintf(fuzz_dir_path, sizeof(fuzz_dir_path), "%s/sheaf-fuzz-XXXXXX",
                access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
        fuzz_must(mkdtemp(fuzz_dir_path));
        atexit(fuzz_dir_end);
        fd = open(fuzz_dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fuzz_must(fd >= 0);
        return fd;
}

#endif
