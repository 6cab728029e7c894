/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary trees and synchronous use of an origin, for its tests. A failure
 * of the scaffolding aborts the test. */
#ifndef SHEAF_TESTS_ORIGIN_TREE_H
#define SHEAF_TESTS_ORIGIN_TREE_H

#include "daemon/origin/origin.h"

struct tree {
        char dir[64];
        int root_fd;
        uv_loop_t loop;
        struct sheaf_origin *origin;
        void *block;
        struct sheaf_listing listing;
        struct sheaf_origin_summary summary;
        uint64_t progress;
};

void tree_make(struct tree *tree);
/* Removes the tree from the file system and frees everything. */
void tree_free(struct tree *tree);

/* File @path with @bytes of content made from its name. */
void tree_file(struct tree *tree, const char *path, size_t bytes);
void tree_dir(struct tree *tree, const char *path);
char *tree_path(struct tree *tree, const char *path, char out[4096]);
/* Lets two seconds pass for the clocks of all files below. */
void tree_age(struct tree *tree);
uint8_t tree_byte(const char *path, uint64_t at);

struct tree_options {
        const char *reader;
        bool switch_user;
        uid_t uid;
        gid_t gid;
        const gid_t *groups;
        size_t group_count;
        int64_t deadline_ns; /* 0: 10 s */
        int64_t idle_ns;
};
void tree_origin(struct tree *tree, const struct tree_options *options);

/* Lists; 0 or the listing's rc. The block was opened with all checks. */
int tree_list(struct tree *tree, bool follow);
uint32_t tree_find(struct tree *tree, const char *path);

struct tree_read {
        struct sheaf_origin_read read;
        struct tree *tree;
        bool finished;
        int rc;
};
void tree_read_begin(struct tree *tree, struct tree_read *read,
        const char *path, uint32_t index);
int tree_read_wait(struct tree_read *read);
/* Begin, wait, compare with the content that tree_file() made, end. */
int tree_read(struct tree *tree, const char *path, uint32_t index);
int tree_probe(struct tree *tree);
struct sheaf_origin_stats tree_stats(struct tree *tree);

#endif
