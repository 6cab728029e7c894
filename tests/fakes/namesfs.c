/* SPDX-License-Identifier: Apache-2.0 */
/* A file system of one directory whose names are longer than disks allow.
 *
 *      namesfs DIR LENGTH...
 *
 * One file for each length: that many times a letter, 'a' for the first; its
 * content is its length as text. Stays in the foreground and prints "ready"
 * when it is mounted. */
#define FUSE_USE_VERSION 31

#include "proto/base.h"

#include <fuse_lowlevel.h>
#include <stdio.h>
#include <sys/stat.h>

#define FILES_MAX 26

static size_t lengths[FILES_MAX];
static size_t count;

static void name_of(size_t i, char name[4096])
{
        memset(name, 'a' + (int)i, lengths[i]);
        name[lengths[i]] = '\0';
}

static size_t text_of(size_t i, char text[24])
{
        return (size_t)snprintf(text, 24, "%zu", lengths[i]);
}

/* Node 1 is the root; file i has node i + 2. */
static int fill(fuse_ino_t ino, struct stat *st)
{
        char text[24];

        memset(st, 0, sizeof(*st));
        st->st_ino = ino;
        st->st_nlink = 1;
        st->st_mtim.tv_sec = 1000000000;
        st->st_ctim.tv_sec = 1000000000;
        if (ino == 1) {
                st->st_mode = S_IFDIR | 0755;
                st->st_nlink = 2;
                return 0;
        }
        if (ino - 2 >= count)
                return -ENOENT;
        st->st_mode = S_IFREG | 0644;
        st->st_size = (off_t)text_of(ino - 2, text);
        return 0;
}

static void names_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
        struct fuse_entry_param param = { .attr_timeout = 60 };
        char own[4096];

        for (size_t i = 0; parent == 1 && i < count; i++) {
                name_of(i, own);
                if (strcmp(name, own))
                        continue;
                param.ino = i + 2;
                fill(param.ino, &param.attr);
                fuse_reply_entry(req, &param);
                return;
        }
        fuse_reply_err(req, ENOENT);
}

static void names_getattr(
        fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
        struct stat st;

        (void)fi;
        if (fill(ino, &st))
                fuse_reply_err(req, ENOENT);
        else
                fuse_reply_attr(req, &st, 60);
}

static void names_readdir(fuse_req_t req, fuse_ino_t ino, size_t cap,
        off_t offset, struct fuse_file_info *fi)
{
        char buf[65536], name[4096];
        size_t used = 0;
        struct stat st;

        (void)fi;
        for (size_t i = (size_t)offset; ino == 1 && i < count; i++) {
                size_t room = SHEAF_MIN(cap, sizeof(buf)) - used, n;

                fill(i + 2, &st);
                name_of(i, name);
                n = fuse_add_direntry(
                        req, buf + used, room, name, &st, (off_t)(i + 1));
                if (n > room)
                        break;
                used += n;
        }
        fuse_reply_buf(req, buf, used);
}

static void names_read(fuse_req_t req, fuse_ino_t ino, size_t cap, off_t offset,
        struct fuse_file_info *fi)
{
        char text[24];
        size_t len, at = (size_t)offset;

        (void)fi;
        if (ino - 2 >= count) {
                fuse_reply_err(req, EISDIR);
                return;
        }
        len = text_of(ino - 2, text);
        if (at >= len)
                fuse_reply_buf(req, NULL, 0);
        else
                fuse_reply_buf(req, text + at, SHEAF_MIN(cap, len - at));
}

static const struct fuse_lowlevel_ops ops = {
        .lookup = names_lookup,
        .getattr = names_getattr,
        .readdir = names_readdir,
        .read = names_read,
};

int main(int argc, char **argv)
{
        struct fuse_args args = FUSE_ARGS_INIT(1, argv);
        struct fuse_session *session;

        for (int i = 2; i < argc && count < FILES_MAX; i++) {
                lengths[count] = strtoul(argv[i], NULL, 10);
                if (!lengths[count] || lengths[count] >= 4096)
                        return 2;
                count++;
        }
        if (!count)
                return 2;
        session = fuse_session_new(&args, &ops, sizeof(ops), NULL);
        if (!session || fuse_session_mount(session, argv[1]))
                return 1;
        puts("ready");
        fflush(stdout);
        fuse_session_loop(session);
        fuse_session_unmount(session);
        fuse_session_destroy(session);
        return 0;
}
