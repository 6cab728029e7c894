/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk reads through real reader processes: bytes, identity, users, loss of
 * readers, and trees that change beneath them. */
#include "tests/daemon/origin/tree.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static struct tree tree;

static void begin(const char *faults, struct tree_options options)
{
        if (faults)
                setenv("SHEAF_FAULT_ORIGIN", faults, 1);
        if (!options.reader)
                options.reader = faults ? READER_FAULTS : READER;
        tree_origin(&tree, &options);
}

/* The same, with a listed tree of one file of 1,000 bytes. */
static void begin_with(const char *file, const char *faults)
{
        tree_make(&tree);
        tree_file(&tree, file, 1000);
        begin(faults, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
}

static void read_under_way(struct tree_read *read, const char *file)
{
        tree_read_begin(&tree, read, file, 0);
        while (!tree_stats(&tree).in_flight)
                uv_run(&tree.loop, UV_RUN_NOWAIT);
}

TestSuite(origin_read, .timeout = 60);

Test(origin_read, whole_chunks_of_every_size)
{
        static const size_t sizes[] = { 1, 4095, 4096, 4097, 110000,
                SHEAF_CHUNK_BYTES_MAX - 1, SHEAF_CHUNK_BYTES_MAX,
                SHEAF_CHUNK_BYTES_MAX + 1, 2 * SHEAF_CHUNK_BYTES_MAX };
        char name[32];

        tree_make(&tree);
        tree_dir(&tree, "d");
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++) {
                sprintf(name, "d/%zu", sizes[i]);
                tree_file(&tree, name, sizes[i]);
        }
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(sizes); i++) {
                sprintf(name, "d/%zu", sizes[i]);
                for (uint32_t c = 0; c < sheaf_chunk_count(sizes[i]); c++)
                        cr_assert_eq(
                                tree_read(&tree, name, c), SHEAF_ORIGIN_SAME);
        }
        cr_assert_eq(tree_stats(&tree).starts, 1);
        cr_assert_eq(tree_stats(&tree).errors, 0);
        tree_free(&tree);
}

Test(origin_read, more_than_the_slots_are_queued)
{
        static struct tree_read reads[100];
        char name[32];

        tree_make(&tree);
        for (int i = 0; i < 100; i++) {
                sprintf(name, "f%d", i);
                tree_file(&tree, name, 3000);
        }
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        for (int i = 0; i < 100; i++) {
                sprintf(name, "f%d", i);
                tree_read_begin(&tree, &reads[i], name, 0);
        }
        cr_assert_eq(tree_stats(&tree).queued, 100);
        for (int i = 0; i < 100; i++) {
                sprintf(name, "f%d", i);
                cr_assert_eq(tree_read_wait(&reads[i]), 0);
                for (uint32_t b = 0; b < 3000; b++)
                        cr_assert_eq(((const uint8_t *)reads[i].read.bytes)[b],
                                tree_byte(name, b));
                sheaf_origin_read_end(&reads[i].read);
        }
        tree_free(&tree);
}

Test(origin_read, over_the_queue_bound_is_refused)
{
        size_t count = SHEAF_ORIGIN_QUEUE_MAX + 1;
        struct tree_read *reads = calloc(count, sizeof(*reads));
        size_t refused = 0;

        tree_make(&tree);
        tree_file(&tree, "f", 10);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        for (size_t i = 0; i < count; i++)
                tree_read_begin(&tree, &reads[i], "f", 0);
        for (size_t i = 0; i < count; i++) {
                int rc = tree_read_wait(&reads[i]);

                refused += rc == -EAGAIN;
                cr_assert(rc == 0 || rc == -EAGAIN);
                sheaf_origin_read_end(&reads[i].read);
        }
        cr_assert_eq(refused, 1);
        tree_free(&tree);
        free(reads);
}

Test(origin_read, a_changed_file_is_stale)
{
        char full[4096];
        struct stat st;

        tree_make(&tree);
        tree_file(&tree, "f", 1000);
        tree_file(&tree, "same-size", 1000);
        tree_file(&tree, "replaced", 1000);
        tree_file(&tree, "gone", 1000);
        tree_dir(&tree, "dir");
        tree_file(&tree, "dir/f", 1000);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);

        truncate(tree_path(&tree, "f", full), 900);
        cr_assert_eq(tree_read(&tree, "f", 0), -ESTALE);

        /* Rewritten with the old mtime: only inode and ctime could tell. */
        stat(tree_path(&tree, "replaced", full), &st);
        tree_file(&tree, "other", 1000);
        rename(tree_path(&tree, "other", (char[4096]){ 0 }), full);
        utimensat(AT_FDCWD, full,
                (struct timespec[2]){ st.st_atim, st.st_mtim }, 0);
        cr_assert_eq(tree_read(&tree, "replaced", 0), -ESTALE);

        tree_file(&tree, "same-size", 1000);
        cr_assert_eq(tree_read(&tree, "same-size", 0), -ESTALE);

        unlink(tree_path(&tree, "gone", full));
        cr_assert_eq(tree_read(&tree, "gone", 0), -ENOENT);

        /* A directory on the way became a file. */
        unlink(tree_path(&tree, "dir/f", full));
        rmdir(tree_path(&tree, "dir", full));
        tree_file(&tree, "dir", 5);
        cr_assert_eq(tree_read(&tree, "dir/f", 0), -ENOENT);
        cr_assert_eq(tree_stats(&tree).stale, 3);
        tree_free(&tree);
}

Test(origin_read, ctime_alone_is_told_apart)
{
        struct tree_read read;
        char full[4096];
        struct stat st;

        begin_with("f", NULL);
        usleep(20000);
        chmod(tree_path(&tree, "f", full), 0640);
        tree_read_begin(&tree, &read, "f", 0);
        cr_assert_eq(tree_read_wait(&read), SHEAF_ORIGIN_CTIME_MOVED);
        stat(full, &st);
        cr_assert_eq(read.read.new_ctime_packed,
                sheaf_listing_pack_ctime(
                        st.st_ctim.tv_sec, (uint32_t)st.st_ctim.tv_nsec));
        cr_assert_neq(read.read.new_ctime_packed,
                tree.listing.entries[read.read.entry].ctime_packed);
        sheaf_origin_read_end(&read.read);
        tree_free(&tree);
}

Test(origin_read, a_file_that_shrinks_during_the_read_is_stale)
{
        struct tree_read read;
        char full[4096];

        tree_make(&tree);
        tree_file(&tree, "f-slow", 100000);
        begin("delay=400:f-slow", (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        tree_read_begin(&tree, &read, "f-slow", 0);
        for (int i = 0; i < 20; i++) {
                uv_run(&tree.loop, UV_RUN_NOWAIT);
                usleep(10000);
        }
        cr_assert_eq(tree_stats(&tree).in_flight, 1);
        truncate(tree_path(&tree, "f-slow", full), 50000);
        cr_assert_eq(tree_read_wait(&read), -ESTALE);
        tree_free(&tree);
}

Test(origin_read, a_file_rewritten_during_the_read_is_stale)
{
        struct tree_read read;

        tree_make(&tree);
        tree_file(&tree, "f-slow", 100000);
        begin("delay=400:f-slow", (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        tree_read_begin(&tree, &read, "f-slow", 0);
        for (int i = 0; i < 20; i++) {
                uv_run(&tree.loop, UV_RUN_NOWAIT);
                usleep(10000);
        }
        tree_file(&tree, "f-slow", 100000);
        cr_assert_eq(tree_read_wait(&read), -ESTALE);
        tree_free(&tree);
}

Test(origin_read, injected_errors_are_told_or_mended)
{
        tree_make(&tree);
        tree_file(&tree, "bad", 1000);
        tree_file(&tree, "short", 1000);
        tree_file(&tree, "handle", 1000);
        tree_file(&tree, "good", 1000);
        begin("eio:bad,short:short,estale-once:handle",
                (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree_read(&tree, "bad", 0), -EIO);
        cr_assert_eq(tree_read(&tree, "short", 0), -ESTALE);
        cr_assert_eq(tree_read(&tree, "handle", 0), 0);
        cr_assert_eq(tree_read(&tree, "good", 0), 0);
        tree_free(&tree);
}

Test(origin_read, a_hanging_read_times_out_and_the_next_works)
{
        struct tree_read hung, other;

        tree_make(&tree);
        tree_file(&tree, "hang", 1000);
        tree_file(&tree, "good", 1000);
        begin("hang:hang",
                (struct tree_options){ .deadline_ns = 500 * SHEAF_NS_PER_MS });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree_read(&tree, "good", 0), 0);
        tree_read_begin(&tree, &hung, "hang", 0);
        tree_read_begin(&tree, &other, "good", 0);
        cr_assert_eq(tree_read_wait(&other), 0);
        cr_assert_eq(tree_read_wait(&hung), -ETIMEDOUT);
        sheaf_origin_read_end(&other.read);
        cr_assert_eq(tree_read(&tree, "good", 0), 0);
        cr_assert_eq(tree_stats(&tree).starts, 2);
        cr_assert_eq(tree_stats(&tree).timeouts, 1);
        tree_free(&tree);
}

Test(origin_read, queued_reads_keep_the_deadline_too)
{
        static struct tree_read reads[3 * SHEAF_ORIGIN_SLOTS];

        tree_make(&tree);
        tree_file(&tree, "hang", 1000);
        begin("hang:hang",
                (struct tree_options){ .deadline_ns = 300 * SHEAF_NS_PER_MS });
        cr_assert_eq(tree_list(&tree, false), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(reads); i++)
                tree_read_begin(&tree, &reads[i], "hang", 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(reads); i++)
                cr_assert_eq(tree_read_wait(&reads[i]), -ETIMEDOUT);
        /* All of them in one deadline, not one after the other. */
        cr_assert_leq(tree_stats(&tree).starts, 2);
        tree_free(&tree);
}

Test(origin_read, a_killed_reader_is_replaced_once)
{
        struct tree_read read;

        begin_with("slow", "delay=300:slow");
        read_under_way(&read, "slow");
        kill(tree_stats(&tree).pid, SIGKILL);
        cr_assert_eq(tree_read_wait(&read), 0);
        sheaf_origin_read_end(&read.read);
        cr_assert_eq(tree_stats(&tree).starts, 2);
        tree_free(&tree);
}

/* Somebody kills one reader after the other, before they say a word. */
Test(origin_read, readers_killed_in_a_row_cost_no_read)
{
        struct tree_read read;
        pid_t shot = 0;

        begin_with("slow", "delay=100:slow");
        tree_read_begin(&tree, &read, "slow", 0);
        for (int killed = 0; killed < 5 && !read.finished;) {
                pid_t pid;

                uv_run(&tree.loop, UV_RUN_ONCE);
                pid = tree_stats(&tree).pid;
                if (!pid || pid == shot)
                        continue;
                kill(pid, SIGKILL);
                shot = pid;
                killed++;
        }
        cr_assert_eq(tree_read_wait(&read), 0);
        sheaf_origin_read_end(&read.read);
        tree_free(&tree);
}

Test(origin_read, a_file_that_kills_readers_is_given_up)
{
        tree_make(&tree);
        tree_file(&tree, "crash", 1000);
        tree_file(&tree, "good", 1000);
        begin("crash:crash", (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree_read(&tree, "crash", 0), -EIO);
        cr_assert_eq(tree_read(&tree, "good", 0), 0);
        /* Three that say nothing, between the first and the last. */
        cr_assert_eq(tree_stats(&tree).starts, 5);
        tree_free(&tree);
}

Test(origin_read, bytes_outlive_reader_and_origin)
{
        struct tree_read read;

        begin_with("f", NULL);
        tree_read_begin(&tree, &read, "f", 0);
        cr_assert_eq(tree_read_wait(&read), 0);
        sheaf_origin_free(sheaf_steal(&tree.origin));
        for (int i = 0; i < 50; i++) {
                uv_run(&tree.loop, UV_RUN_NOWAIT);
                usleep(2000);
        }
        for (uint32_t b = 0; b < 1000; b++)
                cr_assert_eq(((const uint8_t *)read.read.bytes)[b],
                        tree_byte("f", b));
        sheaf_origin_read_end(&read.read);
        tree_free(&tree);
}

Test(origin_read, freeing_cancels)
{
        struct tree_read read;

        begin_with("hang", "hang:hang");
        read_under_way(&read, "hang");
        sheaf_origin_free(sheaf_steal(&tree.origin));
        cr_assert(read.finished);
        cr_assert_eq(read.rc, -ECANCELED);
        tree_free(&tree);
}

Test(origin_read, no_reader_program_is_an_error)
{
        tree_make(&tree);
        begin(NULL,
                (struct tree_options){ .reader = "/nonexistent/sheaf-reader" });
        cr_assert_eq(tree_list(&tree, false), -ENOENT);
        tree_free(&tree);
}

Test(origin_read, a_program_that_is_no_reader_is_an_error)
{
        tree_make(&tree);
        begin(NULL, (struct tree_options){ .reader = "/bin/false" });
        cr_assert_eq(tree_list(&tree, false), -EIO);
        tree_free(&tree);
}

Test(origin_read, an_idle_reader_ends_and_comes_back)
{
        tree_make(&tree);
        tree_file(&tree, "f", 1000);
        begin(NULL, (struct tree_options){ .idle_ns = 100 * SHEAF_NS_PER_MS });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_neq(tree_stats(&tree).pid, 0);
        while (tree_stats(&tree).pid)
                uv_run(&tree.loop, UV_RUN_ONCE);
        cr_assert_eq(tree_read(&tree, "f", 0), 0);
        cr_assert_eq(tree_stats(&tree).starts, 2);
        tree_free(&tree);
}

/* Value of a line "Name:\t..." of /proc/PID/status. */
static char *status_line(pid_t pid, const char *name, char out[256])
{
        char path[64], line[256];
        FILE *file;

        sprintf(path, "/proc/%d/status", pid);
        file = fopen(path, "re");
        cr_assert_not_null(file);
        *out = 0;
        while (fgets(line, sizeof(line), file)) {
                size_t len = strlen(name);

                if (!strncmp(line, name, len) && line[len] == ':') {
                        strcpy(out, line + len + 2);
                        out[strcspn(out, "\n")] = 0;
                }
        }
        fclose(file);
        return out;
}

Test(origin_read, the_reader_is_wholly_the_owner)
{
        static const gid_t groups[] = { 1234, 5678 };
        char line[256], full[4096];
        pid_t pid;

        if (geteuid())
                cr_skip("becomes another user: needs root");
        tree_make(&tree);
        tree_file(&tree, "mine", 1000);
        tree_file(&tree, "group", 1000);
        tree_file(&tree, "root", 1000);
        chown(tree_path(&tree, "mine", full), 1234, 1234);
        chmod(full, 0600);
        chown(tree_path(&tree, "group", full), 0, 5678);
        chmod(full, 0640);
        chmod(tree_path(&tree, "root", full), 0600);
        begin(NULL, (struct tree_options){ .switch_user = true,
                            .uid = 1234,
                            .gid = 1234,
                            .groups = groups,
                            .group_count = 2 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.unreadable_files, 1);
        cr_assert_str_eq(tree.summary.first_unreadable, "root");
        cr_assert_eq(tree_read(&tree, "mine", 0), 0);
        cr_assert_eq(tree_read(&tree, "group", 0), 0);
        cr_assert_eq(tree_read(&tree, "root", 0), -EACCES);
        pid = tree_stats(&tree).pid;
        cr_assert_str_eq(
                status_line(pid, "Uid", line), "1234\t1234\t1234\t1234");
        cr_assert_str_eq(
                status_line(pid, "Gid", line), "1234\t1234\t1234\t1234");
        cr_assert_str_eq(status_line(pid, "Groups", line), "1234 5678 ");
        cr_assert_str_eq(status_line(pid, "CapEff", line), "0000000000000000");
        cr_assert_str_eq(status_line(pid, "CapPrm", line), "0000000000000000");
        cr_assert_str_eq(status_line(pid, "CapBnd", line), "0000000000000000");
        cr_assert_str_eq(status_line(pid, "NoNewPrivs", line), "1");
        tree_free(&tree);
}

Test(origin_read, the_reader_ends_with_the_daemon)
{
        int pipe_fds[2];
        pid_t daemon, reader = 0;

        tree_make(&tree);
        cr_assert_eq(pipe(pipe_fds), 0);
        daemon = fork();
        if (!daemon) {
                begin(NULL, (struct tree_options){ 0 });
                if (tree_list(&tree, false))
                        _exit(1);
                reader = tree_stats(&tree).pid;
                if (write(pipe_fds[1], &reader, sizeof(reader)) < 0)
                        _exit(1);
                for (;;)
                        pause();
        }
        cr_assert_eq(read(pipe_fds[0], &reader, sizeof(reader)),
                (ssize_t)sizeof(reader));
        kill(daemon, SIGKILL);
        waitpid(daemon, NULL, 0);
        /* Orphaned, it is reaped by init, or stays a zombie without one. */
        for (int i = 0; i < 500; i++) {
                char path[64], line[256] = "";

                sprintf(path, "/proc/%d/status", reader);
                if (access(path, F_OK) ||
                        *status_line(reader, "State", line) == 'Z') {
                        tree_free(&tree);
                        return;
                }
                usleep(10000);
        }
        cr_assert_fail("reader %d is still there", reader);
}

/* A directory is swapped for a link out of the tree, again and again: never
 * a byte from outside. */
Test(origin_read, a_swapped_directory_never_leads_out)
{
        char inside[4096], aside[4096], outside[] = "/tmp/sheaf-out-XXXXXX";
        char file[4096];
        int good = 0, refused = 0, fd;
        struct stat st;
        pid_t swapper;

        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_file(&tree, "d/f", 1000);
        stat(tree_path(&tree, "d/f", file), &st);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_not_null(mkdtemp(outside));
        sprintf(file, "%s/f", outside);
        fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        for (int i = 0; i < 1000; i++)
                cr_assert_eq(write(fd, "X", 1), 1);
        close(fd);
        tree_path(&tree, "d", inside);
        tree_path(&tree, "aside", aside);
        swapper = fork();
        if (!swapper)
                prctl(PR_SET_PDEATHSIG, SIGKILL); /* of a test that fails */
        while (!swapper) {
                rename(inside, aside);
                if (symlink(outside, inside))
                        _exit(1);
                sched_yield();
                unlink(inside);
                rename(aside, inside);
                sched_yield();
        }
        for (int i = 0; i < 20000 && (good < 50 || refused < 50); i++) {
                int rc = tree_read(&tree, "d/f", 0);

                /* tree_read() compares the bytes of a success. */
                good += rc >= 0;
                refused += rc < 0;
                cr_assert(
                        rc >= 0 || rc == -ELOOP || rc == -ENOENT, "rc %d", rc);
        }
        kill(swapper, SIGKILL);
        waitpid(swapper, NULL, 0);
        cr_assert_gt(good, 0);
        cr_assert_gt(refused, 0);
        unlink(file);
        rmdir(outside);
        tree_free(&tree);
}

Test(origin_read, a_fifo_in_a_files_place_does_not_hang)
{
        char full[4096];

        begin_with("f", NULL);
        unlink(tree_path(&tree, "f", full));
        cr_assert_eq(mkfifo(full, 0644), 0);
        cr_assert_eq(tree_read(&tree, "f", 0), -ESTALE);
        tree_free(&tree);
}

Test(origin_read, rm_rf_of_the_tree)
{
        char command[4096 + 16];
        int rc;

        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_file(&tree, "d/f", 1000);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree_probe(&tree), 0);
        sprintf(command, "rm -rf %s", tree.dir);
        cr_assert_eq(system(command), 0);
        cr_assert_eq(tree_read(&tree, "d/f", 0), -ENOENT);
        cr_assert_eq(tree_probe(&tree), -ESTALE);
        rc = tree_list(&tree, false);
        cr_assert(rc == -ENOENT || rc == 0, "rc %d", rc);
        tree_free(&tree);
}

Test(origin_read, a_path_longer_than_the_kernel_takes)
{
        char name[201];
        char *path = calloc(1, 64 * 1024);
        int at = -1;

        tree_make(&tree);
        memset(name, 'n', 200);
        name[200] = 0;
        at = dup(tree.root_fd);
        for (int i = 0; i < 30; i++) {
                int next;

                cr_assert_eq(mkdirat(at, name, 0755), 0);
                next = openat(at, name, O_RDONLY | O_DIRECTORY);
                close(at);
                at = next;
                strcat(path, name);
                strcat(path, "/");
        }
        int fd = openat(at, "f", O_WRONLY | O_CREAT, 0644);

        strcat(path, "f");
        for (uint64_t i = 0; i < 500; i++) {
                uint8_t byte = tree_byte(path, i);

                cr_assert_eq(write(fd, &byte, 1), 1);
        }
        close(fd);
        close(at);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.files, 1);
        cr_assert_gt(strlen(path), 4096);
        cr_assert_eq(tree_read(&tree, path, 0), 0);
        char command[4096 + 16];

        sprintf(command, "rm -rf %s", tree.dir);
        cr_assert_eq(system(command), 0);
        tree_free(&tree);
        free(path);
}

Test(origin_read, probe_tells_another_tree)
{
        char full[4096], name[16];

        tree_make(&tree);
        for (int i = 0; i < 40; i++) {
                sprintf(full, "f%d", i);
                tree_file(&tree, full, 10);
        }
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree_probe(&tree), 0);
        chmod(tree_path(&tree, "f0", full), 0600); /* ctime does not count */
        cr_assert_eq(tree_probe(&tree), 0);
        /* Some files change or go while no daemon looks. */
        for (int i = 0; i < 10; i++) {
                sprintf(name, "f%d", i);
                truncate(tree_path(&tree, name, full), 11);
        }
        unlink(full);
        cr_assert_eq(tree_probe(&tree), 0);
        for (int i = 10; i < 40; i++) {
                sprintf(name, "f%d", i);
                truncate(tree_path(&tree, name, full), 11);
        }
        cr_assert_eq(tree_probe(&tree), -ESTALE);
        tree_free(&tree);
}
