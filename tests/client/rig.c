/* SPDX-License-Identifier: Apache-2.0 */
/* See rig.h. */
#include "tests/client/rig.h"

#include <criterion/criterion.h>

#include <stdio.h>

const uint64_t rig_sizes[RIG_FILES] = {
        110000,
        0,
        1,
        SHEAF_CHUNK_BYTES_MAX,
        SHEAF_CHUNK_BYTES_MAX + 5,
        9 * SHEAF_MIB + 1,
        [6 ... RIG_FILES - 1] = 5000,
};

void rig_start(struct rig *rig, const struct fake_options *options)
{
        struct sheaf_session_options opt = { .name = "rig" };

        memset(rig, 0, sizeof(*rig));
        if (options)
                rig->options = *options;
        if (!rig->options.sizes) {
                rig->options.sizes = rig_sizes;
                rig->options.n = RIG_FILES;
        }
        strcpy(rig->dir, "/tmp/sheaf-rig-XXXXXX");
        cr_assert(mkdtemp(rig->dir));
        snprintf(rig->path, sizeof(rig->path), "%s/sock", rig->dir);
        rig->fake = fake_start(rig->path, &rig->options);
        rig->knobs = fake_knobs(rig->fake);
        opt.socket = rig->path;
        cr_assert_eq(sheaf_session_new(&opt, &rig->session), 0);
        cr_assert_eq(sheaf_dataset_open(rig->session, "fake", &rig->dataset), 0,
                "%s", sheaf_last_error());
}

void rig_restart(struct rig *rig)
{
        if (rig->fake)
                fake_stop(rig->fake);
        rig->fake = fake_start(rig->path, &rig->options);
        rig->knobs = fake_knobs(rig->fake);
}

void rig_stop(struct rig *rig)
{
        sheaf_session_free(rig->session);
        if (rig->fake)
                fake_stop(rig->fake);
        unlink(rig->path);
        rmdir(rig->dir);
}

bool rig_bytes_right(const struct rig *rig, uint64_t ordinal, uint64_t offset,
        const struct sheaf_view *view)
{
        uint32_t entry = sheaf_dataset_listing(rig->dataset)->files[ordinal];
        uint64_t sum = 0;

        for (size_t p = 0; p < view->piece_count; p++) {
                const uint8_t *bytes = view->pieces[p].iov_base;

                for (size_t i = 0; i < view->pieces[p].iov_len; i++)
                        if (bytes[i] != fake_byte(entry, offset + sum + i))
                                return false;
                sum += view->pieces[p].iov_len;
        }
        return sum == view->len_bytes;
}

bool rig_reaches(const _Atomic uint64_t *counter, uint64_t value)
{
        for (int i = 0; i < 4000; i++) {
                if (atomic_load(counter) >= value)
                        return true;
                usleep(5000);
        }
        return false;
}
