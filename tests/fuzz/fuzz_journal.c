/* SPDX-License-Identifier: Apache-2.0 */
/* What a start finds of jobs, and what clients remember of epochs: any bytes
 * as an epoch's journal, whole records with any end, bitmaps of subsets and of
 * restores, "about".
 *
 *  1 a journal gives its records up to an end that is none, or is refused;
 *    read again it is the same, and what is appended next is read too
 *  2 a run that is restored is one-to-one, keeps what it had, and is completed
 *    with each sample once
 *  3 one made from a bitmap has read what that says, no more
 *  4 message.h holds for what decodes; no descriptor stays open */
#include "daemon/jobs/internal.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/message.h"

#include <sys/mman.h>

#define SAMPLES_MAX 400
#define BYTES_MAX   ((SAMPLES_MAX + 7) / 8)
#define EPOCH       3

static struct sheaf_journal_job job;
static struct sheaf_job_config config;

static bool here(void *arg, uint32_t sample)
{
        (void)arg;
        return sample * UINT32_C(2654435761) >> 31;
}

static void take_job(struct fuzz_input *in)
{
        job = (struct sheaf_journal_job){ .samples = 1 +
                                                     fuzz_u16(in) % SAMPLES_MAX,
                .order = fuzz_u8(in) % 3 };
        if (job.order == SHEAF_ORDER_WINDOW)
                job.window = 1 + fuzz_u8(in) % 64;
        job.seed = fuzz_u8(in);
        config =
                (struct sheaf_job_config){ .order = (enum sheaf_order)job.order,
                        .window = job.window,
                        .seed = job.seed,
                        .ahead = 16 };
}

static bool bit(const uint8_t *bitmap, uint32_t n)
{
        return bitmap[n / 8] >> n % 8 & 1;
}

/* ---- runs ---- */

/* Binds all slots of @run (taken over); what looked bound stays. @ret_samples:
 * of each slot. */
static void complete(struct sheaf_run *run, uint32_t ret_samples[SAMPLES_MAX])
{
        struct sheaf_cohort_config cohort_config = {
                .samples = job.samples, .here = here, .seed = 1
        };
        uint8_t seen[BYTES_MAX] = { 0 };
        struct sheaf_cohort *cohort;
        struct sheaf_job *of;

        fuzz_must(!sheaf_cohort_new(&cohort_config, &cohort));
        fuzz_must(!sheaf_job_new(cohort, &config, &of));
        sheaf_run_adopt(of, run);
        for (uint32_t slot = 0; slot < job.samples; slot++) {
                struct sheaf_bound bound;
                uint32_t had;
                int rc = sheaf_run_look(run, slot, &had);

                fuzz_must(!rc || rc == -ENOENT);
                fuzz_must(!sheaf_run_bind(run, slot, slot, &bound));
                fuzz_must(bound.sample < job.samples);
                fuzz_must(rc || (bound.again && bound.sample == had));
                fuzz_must(!bit(seen, bound.sample));
                seen[bound.sample / 8] |= (uint8_t)(1 << bound.sample % 8);
                ret_samples[slot] = bound.sample;
        }
        fuzz_must(sheaf_run_bound(run) == job.samples);
        sheaf_job_free(of);
        sheaf_cohort_free(cohort);
}

static void restore(const struct sheaf_run_state *state)
{
        uint32_t samples[SAMPLES_MAX];
        struct sheaf_run *run;
        int rc = sheaf_run_restore(&config, job.samples, state, &run);

        fuzz_must(!rc || rc == -EBADMSG);
        if (rc)
                return;
        complete(run, samples);
        for (size_t i = 0; i < state->replaced_count; i++)
                fuzz_must(samples[state->replaced[i][0]] ==
                          state->replaced[i][1]);
}

/* ---- journals ---- */

static void path_of(const char *name, char path[96])
{
        (void)fuzz_dir();
        snprintf(path, 96, "%s/%s", fuzz_dir_path, name);
}

static void write_file(const char *name, const void *bytes, size_t len)
{
        char path[96];
        sheaf_autofd int fd = -1;

        path_of(name, path);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        fuzz_must(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
}

static int load(struct sheaf_journal *ret_journal)
{
        const char *field = NULL;
        int rc = sheaf_journal_load(
                fuzz_dir_path, EPOCH, &job, ret_journal, &field);

        fuzz_must(!rc || rc == -EBADMSG || (rc == -EINVAL && field));
        return rc;
}

static void same_as_sum(const struct sheaf_run_state *state)
{
        struct sheaf_journal_sum sum;

        fuzz_must(!sheaf_journal_sum(fuzz_dir(), EPOCH, &sum));
        fuzz_must(sum.high == state->high);
        fuzz_must(sum.replaced == state->replaced_count);
}

/* As a job begins: what is damaged is passed over, though it is there. */
static void read_newest(void)
{
        struct sheaf_journal journal;
        const char *field = NULL;
        int rc = sheaf_journal_read(fuzz_dir_path, &job, &journal, &field);

        fuzz_must(!rc || (rc == -EINVAL && field));
        if (rc)
                return;
        fuzz_must(journal.any && journal.newest == EPOCH);
        fuzz_must(journal.count <= 1);
        sheaf_journal_clear(&journal);
}

/* The file as it lies there. */
static int check_journal(void)
{
        struct sheaf_journal_record more = sheaf_journal_mark(1);
        struct sheaf_journal journal, again;
        const struct sheaf_run_state *state = &journal.states[0];
        const struct sheaf_run_state *next = &again.states[0];
        int rc = load(&journal);

        read_newest();
        if (rc)
                return rc;
        if (!journal.count) {
                sheaf_journal_clear(&journal);
                return -ENOENT;
        }
        same_as_sum(state);
        fuzz_must(!sheaf_journal_append(fuzz_dir_path, EPOCH, false, &more, 1));
        fuzz_must(!load(&again) && again.count == 1);
        fuzz_must(next->high == SHEAF_MAX(state->high, UINT32_C(1)));
        fuzz_must(next->seed == state->seed && next->stream == state->stream);
        fuzz_must(next->replaced_count == state->replaced_count);
        fuzz_must(!state->replaced_count ||
                  !memcmp(next->replaced, state->replaced,
                          state->replaced_count * sizeof(*state->replaced)));
        restore(state);
        sheaf_journal_clear(&again);
        sheaf_journal_clear(&journal);
        return 0;
}

/* Good records, and behind them any bytes. */
static void sealed_journal(struct fuzz_input *in)
{
        static struct sheaf_journal_record records[2048];
        struct sheaf_run_state state = { .seed = fuzz_u8(in),
                .stream = fuzz_u8(in) };
        size_t want = fuzz_u16(in) % 512, n = SHEAF_JOURNAL_HEAD, end;
        uint8_t torn = fuzz_u8(in);
        int rc;

        sheaf_journal_head(&job, &state, records);
        for (; n < want && in->left; n++) {
                uint32_t a = fuzz_u16(in) % (SAMPLES_MAX + 2);

                records[n] = a & 1 ? sheaf_journal_mark(fuzz_u16(in))
                                   : sheaf_journal_replaced(
                                             a / 2, fuzz_u16(in) % SAMPLES_MAX);
        }
        end = torn % 4 == 3 ? 0 : SHEAF_MIN(in->left, sizeof(records[0]) * 256);
        if (torn % 4 == 2) /* a hole, or an end without its beginning */
                records[torn / 4 % n].check ^= 1;
        memcpy(&records[n], in->data, end);
        if (torn % 4 == 1)
                memset(&records[n], 0, end);
        write_file("3", records, n * sizeof(records[0]) + end);
        rc = check_journal();
        if (torn % 2)
                fuzz_must(!rc);
}

static void raw_journal(struct fuzz_input *in)
{
        write_file("3", in->data, in->left);
        (void)check_journal();
}

/* ---- bitmaps ---- */

static void recall(struct fuzz_input *in)
{
        struct sheaf_run_state state = { .epoch = EPOCH };
        uint8_t read[BYTES_MAX] = { 0 };
        uint32_t samples[SAMPLES_MAX], yielded = fuzz_u16(in);
        uint32_t(*replaced)[2] = NULL;
        struct sheaf_run *run;
        int rc;

        state.seed = fuzz_u64(in);
        state.stream = fuzz_u64(in);
        fuzz_take(in, read, sizeof(read));
        rc = sheaf_run_recall(job.samples, yielded, read, &state, &replaced);
        fuzz_must(!rc || rc == -EBADMSG);
        if (rc)
                return;
        rc = sheaf_run_restore(&config, job.samples, &state, &run);
        fuzz_must(!rc || rc == -EBADMSG);
        if (!rc) {
                complete(run, samples);
                for (uint32_t slot = 0; slot < job.samples; slot++)
                        fuzz_must(bit(read, samples[slot]) == (slot < yielded));
        }
        free(replaced);
}

static void check_subset(const uint8_t *bitmap, uint32_t files)
{
        struct sheaf_subset *subset;
        int rc = sheaf_subset_new(bitmap, files, &subset);
        uint32_t before = 0;

        fuzz_must(!rc || rc == -EINVAL);
        if (rc)
                return;
        fuzz_must(subset->count && subset->count <= files);
        for (uint32_t file = 0; file < files; file++) {
                fuzz_must(sheaf_subset_rank(subset, file) == before);
                if (!bit(bitmap, file))
                        continue;
                fuzz_must(sheaf_subset_member(subset, before) == file);
                before++;
        }
        fuzz_must(before == subset->count);
        sheaf_subset_free(subset);
}

/* A memfd as it came, with the seals and the length that its sender liked. */
static void subset(struct fuzz_input *in)
{
        uint32_t files = 1 + fuzz_u16(in) % 4096;
        size_t len = sheaf_subset_bytes(files), have;
        unsigned int seals = fuzz_u8(in) % 32;
        sheaf_autofree uint8_t *bitmap = malloc(len);
        sheaf_autofd int fd =
                memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int rc;

        have = seals & 16 ? len : in->left;
        fuzz_must(bitmap && fd >= 0);
        fuzz_must(write(fd, in->data, SHEAF_MIN(have, in->left)) >= 0);
        fuzz_must(!ftruncate(fd, (off_t)have));
        fuzz_must(!fcntl(fd, F_ADD_SEALS, seals & 15));
        rc = sheaf_sealed_read(fd, bitmap, len);
        fuzz_must(!rc || rc == -EINVAL);
        fuzz_must(rc || have == len);
        if (!rc)
                check_subset(bitmap, files);
}

/* ---- what a job is ---- */

static void about(struct fuzz_input *in)
{
        SheafRecord__Job *record;

        write_file("about", in->data, in->left);
        record = sheaf_kept_read_about(fuzz_dir());
        if (record)
                fuzz_message(&record->base);
}

static void name(struct fuzz_input *in)
{
        char text[40];
        uint64_t epoch;

        fuzz_take(in, text, sizeof(text));
        text[sizeof(text) - 1] = 0;
        if (sheaf_journal_name(text, &epoch))
                fuzz_must(strspn(text, "0123456789") == strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static void (*const kinds[])(struct fuzz_input *) = { sealed_journal,
                raw_journal, recall, subset, about, name };
        struct fuzz_input in = { data, size };
        uint8_t kind = fuzz_u8(&in) % SHEAF_ARRAY_LEN(kinds);
        int before, after;

        (void)fuzz_dir();
        before = dup(0);
        fuzz_must(before >= 0 && !close(before));
        take_job(&in);
        kinds[kind](&in);
        after = dup(0);
        fuzz_must(after == before && !close(after));
        return 0;
}
