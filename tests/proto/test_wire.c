/* SPDX-License-Identifier: Apache-2.0 */
/* Records, descriptors and socket paths. */
#include "proto/wire.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int pair[2];

static void begin(void)
{
        cr_assert_eq(
                socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair),
                0);
}

static void end(void)
{
        close(pair[0]);
        close(pair[1]);
}

TestSuite(wire, .init = begin, .fini = end, .timeout = 30);

static int open_fds(void)
{
        DIR *dir = opendir("/proc/self/fd");
        int count = 0;

        while (readdir(dir))
                count++;
        closedir(dir);
        return count;
}

static Sheaf__Envelope *error_envelope(uint64_t id, const char *message)
{
        static Sheaf__Envelope env;
        static Sheaf__Error error;

        sheaf__envelope__init(&env);
        sheaf__error__init(&error);
        error.errno_value = EIO;
        error.message = (char *)(uintptr_t)message;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_ERROR;
        env.error = &error;
        return &env;
}

Test(wire, round_trip)
{
        struct sheaf_wire_msg msg;

        cr_assert_eq(
                sheaf_wire_send(pair[0], error_envelope(7, "why"), NULL, 0), 0);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), 1);
        cr_assert_eq(msg.env->id, 7);
        cr_assert_eq(msg.env->body_case, SHEAF__ENVELOPE__BODY_ERROR);
        cr_assert_str_eq(msg.env->error->message, "why");
        cr_assert_eq(msg.fd_count, 0);
        cr_assert_eq(sheaf_wire_take_fd(&msg, 0), -1);
        sheaf_wire_msg_free(&msg);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), -EAGAIN);
}

Test(wire, an_envelope_of_no_bytes_is_not_a_hang_up)
{
        Sheaf__Envelope empty = SHEAF__ENVELOPE__INIT;
        struct sheaf_wire_msg msg;

        /* proto3 leaves out defaults; descriptors tell it from an end. */
        cr_assert_eq(sheaf_wire_send(pair[0], &empty, (int[]){ 0 }, 1), 0);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), 1);
        cr_assert_eq(msg.fd_count, 1);
        sheaf_wire_msg_free(&msg);
        close(pair[0]);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), 0);
        pair[0] = -1;
}

Test(wire, descriptors_arrive_and_close)
{
        int fds[SHEAF_WIRE_FDS_MAX], before = open_fds(), taken;
        struct sheaf_wire_msg msg;
        struct stat a, b;

        for (size_t i = 0; i < SHEAF_WIRE_FDS_MAX; i++)
                fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        cr_assert_eq(sheaf_wire_send(pair[0], error_envelope(1, "x"), fds,
                             SHEAF_WIRE_FDS_MAX),
                0);
        for (size_t i = 0; i < SHEAF_WIRE_FDS_MAX; i++)
                close(fds[i]);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), 1);
        cr_assert_eq(msg.fd_count, SHEAF_WIRE_FDS_MAX);
        taken = sheaf_wire_take_fd(&msg, 5);
        cr_assert_geq(taken, 0);
        cr_assert_eq(sheaf_wire_take_fd(&msg, 5), -1);
        cr_assert(fcntl(taken, F_GETFD) & FD_CLOEXEC);
        fstat(taken, &a);
        stat("/dev/null", &b);
        cr_assert_eq(a.st_rdev, b.st_rdev);
        sheaf_wire_msg_free(&msg);
        close(taken);
        cr_assert_eq(open_fds(), before);
}

Test(wire, too_much_is_refused_by_the_sender)
{
        char *text = calloc(1, SHEAF_WIRE_BYTES_MAX + 1);
        int fds[SHEAF_WIRE_FDS_MAX + 1] = { 0 };

        memset(text, 'x', SHEAF_WIRE_BYTES_MAX);
        cr_assert_eq(sheaf_wire_send(pair[0], error_envelope(1, text), NULL, 0),
                -EMSGSIZE);
        cr_assert_eq(sheaf_wire_send(pair[0], error_envelope(1, "x"), fds,
                             SHEAF_WIRE_FDS_MAX + 1),
                -EMSGSIZE);
        cr_assert_eq(sheaf_wire_send_record(
                             pair[0], text, SHEAF_WIRE_BYTES_MAX + 1, NULL, 0),
                -EMSGSIZE);
        text[SHEAF_WIRE_BYTES_MAX - 100] = 0;
        cr_assert_eq(
                sheaf_wire_send(pair[0], error_envelope(1, text), NULL, 0), 0);
        free(text);
}

Test(wire, a_truncated_record_is_bad_and_nothing_leaks)
{
        size_t len = SHEAF_WIRE_BYTES_MAX + 1;
        int before = open_fds(), fd_list[SHEAF_WIRE_FDS_MAX];
        char *data = calloc(1, len), small[10];
        struct sheaf_wire_msg msg;
        size_t got, fd_count;

        cr_assert_eq(send(pair[0], data, len, 0), (ssize_t)len);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), -EBADMSG);
        /* A short buffer, with a descriptor beside the record. */
        cr_assert_eq(
                sheaf_wire_send_record(pair[0], data, 20, (int[]){ 0 }, 1), 0);
        cr_assert_eq(sheaf_wire_recv_record(pair[1], small, sizeof(small), &got,
                             fd_list, &fd_count),
                -EBADMSG);
        cr_assert_eq(open_fds(), before);
        free(data);
}

Test(wire, some_descriptors_are_taken_and_the_rest_dropped)
{
        int before = open_fds(), fds[5] = { 0 }, got[4];
        size_t len, count;
        char data[8];

        cr_assert_eq(sheaf_wire_brings_fds(pair[1]), -EAGAIN);
        for (size_t sent = 0; sent <= 5; sent++) {
                for (size_t max = 0; max <= 4; max++) {
                        size_t want = SHEAF_MIN(sent, max);

                        cr_assert_eq(sheaf_wire_send_record(
                                             pair[0], "abc", 3, fds, sent),
                                0);
                        cr_assert_eq(sheaf_wire_brings_fds(pair[1]), sent > 0);
                        cr_assert_eq(
                                sheaf_wire_recv_some(pair[1], data,
                                        sizeof(data), max, &len, got, &count),
                                sent > max ? -EBADMSG : 1);
                        cr_assert_eq(count, want);
                        cr_assert_eq(open_fds(), before + (int)want);
                        for (size_t i = 0; i < count; i++)
                                close(got[i]);
                }
        }
        cr_assert_eq(sheaf_wire_recv_some(
                             pair[1], data, sizeof(data), 4, &len, got, &count),
                -EAGAIN);
        cr_assert_eq(count, 0);
}

Test(wire, junk_is_bad)
{
        struct sheaf_wire_msg msg;
        int before = open_fds();

        cr_assert_eq(sheaf_wire_send_record(
                             pair[0], "\xff\xff\xff", 3, (int[]){ 0 }, 1),
                0);
        cr_assert_eq(sheaf_wire_recv(pair[1], &msg), -EBADMSG);
        cr_assert_eq(open_fds(), before);
        cr_assert_null(sheaf_wire_decode("\x0a", 1));
        cr_assert_null(sheaf_wire_decode("", SHEAF_WIRE_BYTES_MAX + 1));
}

Test(wire, a_full_socket_and_a_closed_one)
{
        int rc = 0, sent = 0;

        while (!rc && sent++ < 100000)
                rc = sheaf_wire_send(pair[0], error_envelope(1, "x"), NULL, 0);
        cr_assert_eq(rc, -EAGAIN);
        close(pair[1]);
        rc = sheaf_wire_send(pair[0], error_envelope(1, "x"), NULL, 0);
        cr_assert(rc == -EPIPE || rc == -ECONNRESET, "rc %d", rc);
        pair[1] = -1;
}

/* ---- paths ---- */

static char dir[4096];
static char hundred[101];

static void make_dir(size_t path_len)
{
        memset(hundred, 'd', 100);
        strcpy(dir, "/tmp/sheaf-wire-XXXXXX");
        cr_assert_not_null(mkdtemp(dir));
        while (strlen(dir) + 1 < path_len) {
                size_t more = SHEAF_MIN(path_len - strlen(dir) - 1, 100);

                /* A rest of one byte could not be made. */
                if (path_len - strlen(dir) - 1 - more == 1)
                        more--;
                strcat(dir, "/");
                strcat(dir, hundred + 100 - more);
                cr_assert_eq(mkdir(dir, 0755), 0);
        }
        cr_assert_eq(strlen(dir), path_len);
}

static const char *in_dir(const char *name, char out[5000])
{
        snprintf(out, 5000, "%s/%s", dir, name);
        return out;
}

static void remove_dir(void)
{
        char command[4200];

        dir[strlen("/tmp/sheaf-wire-XXXXXX")] = 0;
        sprintf(command, "rm -rf %s", dir);
        cr_assert_eq(system(command), 0);
}

static void listen_and_connect(const char *path)
{
        int listener = sheaf_wire_listen(path, 0600), client, server;
        struct stat st;

        cr_assert_geq(listener, 0, "%s: %d", path, listener);
        cr_assert_eq(lstat(path, &st), 0, "no socket at the whole path");
        cr_assert(S_ISSOCK(st.st_mode));
        cr_assert_eq(st.st_mode & 0777, 0600);
        cr_assert(sheaf_wire_listens(path));
        client = accept(listener, NULL, NULL);
        cr_assert_geq(client, 0);
        close(client);
        client = sheaf_wire_connect(path);
        cr_assert_geq(client, 0, "%d", client);
        server = accept(listener, NULL, NULL);
        cr_assert_geq(server, 0);
        cr_assert_eq(sheaf_wire_listen(path, 0600), -EADDRINUSE);
        close(server);
        close(client);
        close(listener);
}

Test(wire, socket_paths_of_every_length)
{
        static const size_t lengths[] = { 60, 106, 107, 108, 109, 150, 1000 };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(lengths); i++) {
                char path[5000];

                make_dir(lengths[i] - strlen("/sock"));
                listen_and_connect(in_dir("sock", path));
                remove_dir();
        }
}

/* Two that share their first 120 bytes are two. */
Test(wire, long_paths_are_not_cut_off)
{
        char a[5000], b[5000];
        int first, second;

        make_dir(140);
        in_dir("a.sock", a);
        in_dir("b.sock", b);
        first = sheaf_wire_listen(a, 0600);
        cr_assert_geq(first, 0);
        cr_assert_eq(sheaf_wire_connect(b), -ENOENT);
        second = sheaf_wire_listen(b, 0600);
        cr_assert_geq(second, 0);
        cr_assert_eq(access(a, F_OK), 0);
        cr_assert_eq(access(b, F_OK), 0);
        remove_dir();
}

Test(wire, a_relative_path)
{
        make_dir(40);
        cr_assert_eq(chdir(dir), 0);
        listen_and_connect("sock");
        cr_assert_eq(chdir("/"), 0);
        remove_dir();
}

Test(wire, names_that_cannot_be)
{
        char path[5000], name[200];

        cr_assert_eq(sheaf_wire_connect(""), -ENOENT);
        cr_assert_eq(sheaf_wire_listen("", 0600), -ENOENT);
        memset(path, 'x', sizeof(path));
        path[0] = '/';
        path[sizeof(path) - 1] = 0;
        cr_assert_eq(sheaf_wire_connect(path), -ENAMETOOLONG);
        /* A component that no address can hold. */
        memset(name, 'n', sizeof(name));
        name[sizeof(name) - 1] = 0;
        make_dir(40);
        in_dir(name, path);
        cr_assert_eq(sheaf_wire_listen(path, 0600), -ENAMETOOLONG);
        cr_assert_eq(sheaf_wire_listen("/nonexistent/sock", 0600), -ENOENT);
        remove_dir();
}

Test(wire, a_file_that_is_no_socket_stays)
{
        char path[5000], text[5] = "";
        int fd;

        make_dir(40);
        in_dir("data", path);
        fd = open(path, O_RDWR | O_CREAT, 0644);
        cr_assert_eq(write(fd, "keep", 4), 4);
        cr_assert_eq(sheaf_wire_listen(path, 0600), -EEXIST);
        cr_assert_eq(pread(fd, text, 4, 0), 4);
        cr_assert_str_eq(text, "keep");
        cr_assert_eq(access(path, F_OK), 0);
        close(fd);
        remove_dir();
}

Test(wire, a_socket_that_nobody_serves_is_replaced)
{
        char path[5000];
        int listener;

        for (size_t len = 40; len <= 160; len += 120) {
                make_dir(len);
                in_dir("sock", path);
                listener = sheaf_wire_listen(path, 0600);
                cr_assert_geq(listener, 0);
                close(listener); /* as a killed daemon: the file stays */
                cr_assert_eq(access(path, F_OK), 0);
                cr_assert_eq(sheaf_wire_connect(path), -ECONNREFUSED);
                cr_assert_not(sheaf_wire_listens(path));
                listen_and_connect(path);
                remove_dir();
        }
}
