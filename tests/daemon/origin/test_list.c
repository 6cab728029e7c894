/* SPDX-License-Identifier: Apache-2.0 */
/* Listings of real trees through a real reader process. */
#include "tests/daemon/origin/tree.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct tree tree;

static void begin(const char *faults, struct tree_options options)
{
        if (faults)
                setenv("SHEAF_FAULT_ORIGIN", faults, 1);
        options.reader = faults ? READER_FAULTS : READER;
        tree_origin(&tree, &options);
}

static void link_to(const char *target, const char *path)
{
        char full[4096];

        cr_assert_eq(symlink(target, tree_path(&tree, path, full)), 0);
}

TestSuite(origin_list, .timeout = 60);

Test(origin_list, what_stat_says_is_what_is_listed)
{
        static const char *const paths[] = { "d", "d/f", "d/ff\xfe", "empty",
                "d/new\nline", "link", "d/e" };
        char full[4096], target[64];

        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_dir(&tree, "d/e");
        tree_file(&tree, "d/f", 1234);
        tree_file(&tree, "d/ff\xfe", 7);
        tree_file(&tree, "d/new\nline", 8);
        tree_file(&tree, "empty", 0);
        link_to("d/f", "link");
        chmod(tree_path(&tree, "d/f", full), 04751);
        utimensat(AT_FDCWD, full,
                (struct timespec[2]){ { 1, 2 }, { -5, 987654321 } }, 0);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.dirs, 3);
        cr_assert_eq(tree.summary.files, 4);
        cr_assert_eq(tree.summary.links, 1);
        cr_assert_eq(tree.summary.bytes, 1234 + 7 + 8);
        cr_assert_eq(tree.summary.escaping_links, 0);
        cr_assert_eq(tree.listing.entry_count, 8);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(paths); i++) {
                uint32_t index = tree_find(&tree, paths[i]);
                struct stat listed, st;

                sheaf_listing_stat(&tree.listing, index, &listed);
                lstat(tree_path(&tree, paths[i], full), &st);
                cr_assert_eq(listed.st_mode, st.st_mode);
                cr_assert_eq(listed.st_uid, st.st_uid);
                cr_assert_eq(listed.st_gid, st.st_gid);
                cr_assert_eq(listed.st_nlink, st.st_nlink);
                if (!S_ISDIR(st.st_mode))
                        cr_assert_eq(listed.st_size, st.st_size);
                cr_assert_eq(memcmp(&listed.st_mtim, &st.st_mtim,
                                     sizeof(st.st_mtim)),
                        0);
                cr_assert_eq(memcmp(&listed.st_ctim, &st.st_ctim,
                                     sizeof(st.st_ctim)),
                        0);
        }

        size_t len;
        const char *text = sheaf_listing_target(
                &tree.listing, tree_find(&tree, "link"), &len);

        snprintf(target, sizeof(target), "%.*s", (int)len, text);
        cr_assert_str_eq(target, "d/f");
        tree_free(&tree);
}

Test(origin_list, hard_links_share_node_and_chunks)
{
        char a[4096], b[4096];

        tree_make(&tree);
        tree_dir(&tree, "x");
        tree_file(&tree, "a", 5000);
        cr_assert_eq(
                link(tree_path(&tree, "a", a), tree_path(&tree, "x/b", b)), 0);
        tree_file(&tree, "c", 10);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);

        const struct sheaf_listing_entry *e = tree.listing.entries;
        uint32_t ia = tree_find(&tree, "a"), ib = tree_find(&tree, "x/b");

        cr_assert_eq(e[ia].node, e[ib].node);
        cr_assert_eq(e[ia].first_chunk, e[ib].first_chunk);
        cr_assert(e[ia].flags & e[ib].flags & SHEAF_LISTING_HARDLINK);
        cr_assert_eq(tree.listing.chunk_count, 2);
        cr_assert_eq(tree.summary.hard_links, 1);
        cr_assert_eq(tree.summary.bytes, 5010);
        cr_assert_eq(tree.summary.files, 3);
        tree_free(&tree);
}

Test(origin_list, special_files_are_skipped_and_counted)
{
        struct sockaddr_un addr = { .sun_family = AF_UNIX };
        int sock = socket(AF_UNIX, SOCK_STREAM, 0);
        uint64_t expected = 2;
        char full[4096];

        tree_make(&tree);
        tree_file(&tree, "f", 1);
        mkfifo(tree_path(&tree, "fifo", full), 0644);
        strcpy(addr.sun_path, tree_path(&tree, "sock", full));
        cr_assert_eq(bind(sock, (void *)&addr, sizeof(addr)), 0);
        expected += !mknod(
                tree_path(&tree, "dev", full), S_IFCHR | 0600, makedev(1, 3));
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.skipped_special, expected);
        cr_assert_eq(tree.listing.entry_count, 2);
        tree_free(&tree);
        close(sock);
}

Test(origin_list, links_that_leave_are_found)
{
        static const char *const leaving[] = { "abs", "up", "d/upup", "via",
                "dangling-up" };
        static const char *const staying[] = { "in", "d/back", "dangling",
                "d/dotdot", "loop" };
        char full[4096];

        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_file(&tree, "f", 10);
        link_to("/etc/passwd", "abs");
        link_to("../x", "up");
        link_to("../../etc/passwd", "d/upup");
        link_to("/etc", "out");
        link_to("out/passwd", "via"); /* its words stay inside */
        link_to("../nowhere", "dangling-up");
        link_to("f", "in");
        link_to("../f", "d/back");
        link_to("nowhere", "dangling");
        link_to("..", "d/dotdot");
        link_to("loop", "loop");
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(leaving); i++)
                cr_assert(tree.listing.entries[tree_find(&tree, leaving[i])]
                                          .flags &
                                  SHEAF_LISTING_ESCAPES,
                        "%s", leaving[i]);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(staying); i++)
                cr_assert_not(tree.listing.entries[tree_find(&tree, staying[i])]
                                              .flags &
                                      SHEAF_LISTING_ESCAPES,
                        "%s", staying[i]);
        cr_assert_eq(tree.summary.escaping_links, 6);
        cr_assert_neq(tree.summary.first_escaping[0], 0);
        (void)full;
        tree_free(&tree);
}

/* As the snapshots of a model hub: links to a store beside the tree. */
Test(origin_list, follow_makes_files_of_leaving_links)
{
        char outside[] = "/tmp/sheaf-blobs-XXXXXX", blob[64], full[4096];
        uint32_t first, second;
        int fd;

        tree_make(&tree);
        cr_assert_not_null(mkdtemp(outside));
        sprintf(blob, "%s/blob", outside);
        fd = open(blob, O_WRONLY | O_CREAT, 0644);
        for (uint64_t i = 0; i < 300; i++) {
                uint8_t byte = tree_byte("d/model", i);

                cr_assert_eq(write(fd, &byte, 1), 1);
        }
        close(fd);
        tree_dir(&tree, "d");
        link_to(blob, "d/model");
        link_to(blob, "d/same");
        link_to("/", "directory");
        link_to("/nonexistent/x", "dangling");
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, true), 0);
        first = tree_find(&tree, "d/model");
        second = tree_find(&tree, "d/same");
        cr_assert(sheaf_listing_is_file(&tree.listing, first));
        cr_assert(tree.listing.entries[first].flags & SHEAF_LISTING_FOLLOWED);
        cr_assert_eq(tree.listing.entries[first].size_bytes, 300);
        cr_assert_eq(tree.listing.entries[first].first_chunk,
                tree.listing.entries[second].first_chunk);
        cr_assert(S_ISLNK(
                tree.listing.entries[tree_find(&tree, "directory")].mode));
        cr_assert_eq(tree.summary.followed_links, 2);
        cr_assert_eq(tree_read(&tree, "d/model", 0), 0);
        truncate(blob, 299);
        cr_assert_eq(tree_read(&tree, "d/model", 0), -ESTALE);
        /* The link itself now leads to another file. */
        unlink(tree_path(&tree, "d/model", full));
        link_to("/etc/passwd", "d/model");
        cr_assert_eq(tree_read(&tree, "d/model", 0), -ESTALE);
        unlink(blob);
        rmdir(outside);
        tree_free(&tree);
}

Test(origin_list, unreadable_directories_are_kept_and_named)
{
        char full[4096];
        uint32_t index;

        if (geteuid())
                cr_skip("becomes another user: needs root");
        tree_make(&tree);
        tree_dir(&tree, "closed");
        tree_file(&tree, "closed/f", 10);
        tree_dir(&tree, "open");
        tree_file(&tree, "open/f", 10);
        chmod(tree_path(&tree, "closed", full), 0711);
        begin(NULL, (struct tree_options){
                            .switch_user = true, .uid = 1234, .gid = 1234 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.unreadable_dirs, 1);
        cr_assert_str_eq(tree.summary.first_unreadable, "closed");
        cr_assert_eq(tree.summary.files, 1);
        cr_assert_eq(
                tree.listing.entries[tree_find(&tree, "closed")].mode & 0777,
                0711);
        cr_assert_eq(tree.listing.entries[tree_find(&tree, "closed")].flags,
                SHEAF_LISTING_UNREADABLE);
        cr_assert_eq(sheaf_listing_find(&tree.listing, "closed/f", 8, &index),
                -EACCES);
        tree_free(&tree);
}

Test(origin_list, an_unreadable_root_is_an_error)
{
        if (geteuid())
                cr_skip("becomes another user: needs root");
        tree_make(&tree);
        chmod(tree.dir, 0700);
        begin(NULL, (struct tree_options){
                            .switch_user = true, .uid = 1234, .gid = 1234 });
        cr_assert_eq(tree_list(&tree, false), -EACCES);
        tree_free(&tree);
}

Test(origin_list, fresh_files_are_marked)
{
        char full[4096];

        tree_make(&tree);
        tree_file(&tree, "old", 10);
        tree_file(&tree, "future", 10);
        utimensat(AT_FDCWD, tree_path(&tree, "future", full),
                (struct timespec[2]){ { 4102444800, 0 }, { 4102444800, 0 } },
                0);
        tree_age(&tree);
        tree_file(&tree, "new", 10);
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_not(tree.listing.entries[tree_find(&tree, "old")].flags &
                      SHEAF_LISTING_RECENT);
        cr_assert_not(tree.listing.entries[tree_find(&tree, "future")].flags &
                      SHEAF_LISTING_RECENT);
        cr_assert(tree.listing.entries[tree_find(&tree, "new")].flags &
                  SHEAF_LISTING_RECENT);
        tree_free(&tree);
}

Test(origin_list, a_failing_directory_fails_the_listing)
{
        tree_make(&tree);
        tree_dir(&tree, "bad");
        begin("eio:bad", (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), -EIO);
        tree_free(&tree);
}

/* It was there when its parent was listed: empty would be a lie. */
Test(origin_list, a_directory_that_goes_is_told)
{
        uint32_t index;

        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_dir(&tree, "d/went");
        tree_file(&tree, "d/went/f", 10);
        tree_file(&tree, "d/stays", 10);
        begin("gone:went", (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.unreadable_dirs, 1);
        cr_assert_str_eq(tree.summary.first_unreadable, "d/went");
        cr_assert_eq(tree.summary.files, 1);
        cr_assert_eq(sheaf_listing_find(&tree.listing, "d/went/f", 8, &index),
                -EACCES);
        tree_free(&tree);
}

Test(origin_list, a_stale_handle_is_looked_at_again)
{
        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_file(&tree, "d/f", 10);
        begin("estale-once:d", (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.summary.files, 1);
        tree_free(&tree);
}

Test(origin_list, a_hanging_walk_times_out)
{
        tree_make(&tree);
        tree_dir(&tree, "hang");
        tree_file(&tree, "f", 10);
        begin("hang:hang",
                (struct tree_options){ .deadline_ns = 300 * SHEAF_NS_PER_MS });
        cr_assert_eq(tree_list(&tree, false), -ETIMEDOUT);
        tree_free(&tree);
}

struct two_calls {
        struct sheaf_origin_list list;
        int rc;
        bool finished;
};

static void on_done(struct sheaf_origin_list *list, int rc, int memfd,
        const struct sheaf_origin_summary *summary)
{
        struct two_calls *call = (struct two_calls *)list;

        (void)summary;
        call->rc = rc;
        call->finished = true;
        if (memfd >= 0)
                close(memfd);
}

Test(origin_list, one_at_a_time_and_cancel)
{
        struct two_calls first = { .list = { .serial = 1, .done = on_done } };
        struct two_calls second = first;

        tree_make(&tree);
        tree_dir(&tree, "hang");
        begin("hang:hang",
                (struct tree_options){ .deadline_ns = 500 * SHEAF_NS_PER_MS });
        sheaf_origin_list(tree.origin, &first.list);
        sheaf_origin_list(tree.origin, &second.list);
        cr_assert_not(second.finished);
        while (!second.finished)
                uv_run(&tree.loop, UV_RUN_ONCE);
        cr_assert_eq(second.rc, -EBUSY);
        cr_assert_not(first.finished);
        sheaf_origin_list_cancel(&first.list);
        cr_assert(first.finished);
        cr_assert_eq(first.rc, -ECANCELED);
        /* The cancelled walk hangs on: the deadline of the next frees it. */
        cr_assert_eq(tree_list(&tree, false), -ETIMEDOUT);
        tree_free(&tree);
}

Test(origin_list, many_files_with_progress)
{
        char name[64];

        tree_make(&tree);
        for (int d = 0; d < 20; d++) {
                sprintf(name, "d%d", d);
                tree_dir(&tree, name);
                for (int f = 0; f < 100; f++) {
                        sprintf(name, "d%d/f%d", d, f);
                        tree_file(&tree, name, 1);
                }
        }
        begin(NULL, (struct tree_options){ 0 });
        cr_assert_eq(tree_list(&tree, false), 0);
        cr_assert_eq(tree.listing.entry_count, 2021);
        cr_assert_gt(tree.progress, 0);
        tree_free(&tree);
}

/* Files come and go during the walk: a valid listing, whatever it shows. */
Test(origin_list, a_tree_that_changes_during_the_walk)
{
        char full[4096], name[64];
        pid_t churner;

        tree_make(&tree);
        tree_dir(&tree, "d");
        tree_file(&tree, "d/stays", 5);
        churner = fork();
        if (!churner)
                prctl(PR_SET_PDEATHSIG, SIGKILL); /* of a test that fails */
        /* the child's own loop: it ends with the test */
        for (unsigned int i = 0;; i++) {
                if (churner)
                        break;
                sprintf(name, "d/t%u", i % 50);
                if (i % 100 < 50)
                        tree_file(&tree, name, i % 10);
                else
                        unlink(tree_path(&tree, name, full));
                if (i % 50 == 7)
                        mkdir(tree_path(&tree, "d/sub", full), 0755);
                if (i % 50 == 33)
                        rmdir(tree_path(&tree, "d/sub", full));
        }
        begin(NULL, (struct tree_options){ 0 });
        for (int i = 0; i < 100; i++) {
                cr_assert_eq(tree_list(&tree, false), 0);
                tree_find(&tree, "d/stays");
        }
        kill(churner, SIGKILL);
        waitpid(churner, NULL, 0);
        tree_free(&tree);
}
