/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf doctor: what this machine lacks for Sheaf, and how to get it. Works
 * without a daemon.
 *
 *  1 "fail" means that something will not work; "warn" that it works slower
 *    or for fewer users. Only a fail makes the exit code 1 */
#include "tools/cli/doctor.h"
#include "proto/size.h"
#include "tools/cli/conn.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#define FREE_BYTES_WANTED (10 * SHEAF_GIB)

static const char *const level_names[] = { "ok", "warn", "fail" };

bool doctor_read(const char *path, char *buf, size_t room)
{
        FILE *file = fopen(path, "re");
        bool ok;

        if (!file)
                return false;
        ok = fgets(buf, (int)room, file) != NULL;
        fclose(file);
        if (ok)
                buf[strcspn(buf, "\n")] = '\0';
        return ok;
}

void doctor_line(struct doctor *doctor, enum doctor_level level,
        const char *what, const char *remedy, const char *format, ...)
{
        sheaf_autofree char *found = NULL;
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&found, format, ap);
        va_end(ap);
        if (n < 0)
                abort();
        doctor->count[level]++;
        if (doctor->list) {
                json_t *o = json_object();

                json_object_set_new(o, "check", json_string(what));
                json_object_set_new(
                        o, "level", json_string(level_names[level]));
                cli_json_text(o, "found", found, strlen(found));
                if (remedy && level != DOCTOR_OK)
                        cli_json_text(o, "remedy", remedy, strlen(remedy));
                json_array_append_new(doctor->list, o);
                return;
        }
        if (doctor->cli->quiet && level == DOCTOR_OK)
                return;
        sheaf_autofree char *shown = cli_text(found, strlen(found));

        printf("%-4s  %-16s %s\n", level_names[level], what,
                shown ? shown : "?");
        if (remedy && level != DOCTOR_OK)
                printf("      %-16s %s\n", "", remedy);
}

struct fs_kind {
        uint32_t magic;
        const char *name;
        bool network;
};

static const struct fs_kind fs_kinds[] = {
        { 0xef53, "ext4", false },
        { 0x58465342, "xfs", false },
        { 0x9123683e, "btrfs", false },
        { 0x2fc12fc1, "zfs", false },
        { 0xf2f52010, "f2fs", false },
        { 0x01021994, "tmpfs", false },
        { 0x794c7630, "overlayfs", false },
        { 0x6969, "nfs", true },
        { 0x0bd00bd0, "lustre", true },
        { 0xff534d42, "cifs", true },
        { 0xfe534d42, "smb2", true },
        { 0x00c36400, "ceph", true },
        { 0x47504653, "gpfs", true },
        { 0x5346414f, "afs", true },
        { 0x01021997, "9p", true },
        { 0x65735546, "fuse", true },
};

/* Where sheafd would put its cache; docs/user-guide.md has the order. */
static void cache_dir(char dir[PATH_MAX])
{
        const char *own = getenv("SHEAF_CACHE_DIR");
        const char *xdg = getenv("XDG_CACHE_HOME");
        const char *tmp = getenv("TMPDIR");
        unsigned int uid = (unsigned int)geteuid();

        if (own && *own)
                snprintf(dir, PATH_MAX, "%s", own);
        else if (uid == 0)
                snprintf(dir, PATH_MAX, "/var/cache/sheaf");
        else if (xdg && *xdg == '/')
                snprintf(dir, PATH_MAX, "%s/sheaf", xdg);
        else if (tmp && *tmp == '/')
                snprintf(dir, PATH_MAX, "%s/sheaf-%u", tmp, uid);
        else
                snprintf(dir, PATH_MAX, "/var/tmp/sheaf-%u", uid);
}

/* Shortens @dir to its nearest parent that exists. */
static bool existing_parent(char *dir)
{
        while (access(dir, F_OK)) {
                char *slash = strrchr(dir, '/');

                if (!slash)
                        return false;
                if (slash == dir)
                        slash++;
                if (!*slash)
                        return false;
                *slash = '\0';
        }
        return true;
}

static void check_cache(struct doctor *doctor)
{
        char dir[PATH_MAX], parent[PATH_MAX], size[SHEAF_SIZE_TEXT_MAX];
        const struct fs_kind *kind = NULL;
        struct statfs fs;
        uint64_t free_bytes;

        cache_dir(dir);
        strcpy(parent, dir);
        if (!existing_parent(parent) || statfs(parent, &fs)) {
                doctor_line(doctor, DOCTOR_FAIL, "cache directory",
                        "set SHEAF_CACHE_DIR to a directory on a local disk",
                        "%s: %s", dir, strerror(errno));
                return;
        }
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(fs_kinds); i++)
                if (fs_kinds[i].magic == (uint32_t)fs.f_type)
                        kind = &fs_kinds[i];
        free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
        sheaf_size_text(free_bytes, size);
        if (access(parent, W_OK | X_OK))
                doctor_line(doctor, DOCTOR_FAIL, "cache directory",
                        "set SHEAF_CACHE_DIR to a directory that you may "
                        "write",
                        "%s: no right to write %s", dir, parent);
        else if (kind && kind->network)
                doctor_line(doctor, DOCTOR_FAIL, "cache directory",
                        "set SHEAF_CACHE_DIR to a directory on a local disk",
                        "%s is on %s, which sheafd refuses", dir, kind->name);
        else if (kind && !strcmp(kind->name, "tmpfs"))
                doctor_line(doctor, DOCTOR_WARN, "cache directory",
                        "set SHEAF_CACHE_DIR to a directory on a local disk",
                        "%s is on tmpfs: the disk tier would use memory", dir);
        else
                doctor_line(doctor,
                        free_bytes < FREE_BYTES_WANTED ? DOCTOR_WARN
                                                       : DOCTOR_OK,
                        "cache directory",
                        "free some space, or set SHEAF_CACHE_DIR to a larger "
                        "disk",
                        "%s (%s, %s free)", dir,
                        kind ? kind->name : "another file system", size);
}

static void check_daemon(struct doctor *doctor)
{
        __attribute__((cleanup(cli_conn_free_p))) struct cli_conn *conn = NULL;
        sheaf_autofree char *why = NULL;
        int rc = cli_conn_probe(doctor->cli, &conn, &why);

        if (rc)
                doctor_line(doctor, DOCTOR_WARN, "daemon",
                        "start it: sheafd --foreground, or as a service", "%s",
                        why ? why : "not reachable");
        else
                doctor_line(doctor, DOCTOR_OK, "daemon", NULL,
                        "sheafd %s, pid %u, at %s",
                        cli_conn_welcome(conn)->version,
                        cli_conn_welcome(conn)->daemon_pid,
                        cli_conn_socket(conn));
}

static int run(struct cli *cli)
{
        struct doctor doctor = { .cli = cli };

        if (cli->json)
                doctor.list = json_array();
        doctor_host(&doctor);
        doctor_fuse(&doctor);
        check_cache(&doctor);
        check_daemon(&doctor);
        if (doctor.list)
                cli_json_print(doctor.list);
        else if (!cli->quiet)
                printf("\n%u ok, %u to improve, %u missing\n",
                        doctor.count[DOCTOR_OK], doctor.count[DOCTOR_WARN],
                        doctor.count[DOCTOR_FAIL]);
        return doctor.count[DOCTOR_FAIL] ? CLI_FAILED : CLI_OK;
}

static const struct cli_option options[] = { { 0 } };

const struct cli_verb cli_verb_doctor = {
        .name = "doctor",
        .args = "",
        .brief = "what this machine lacks for Sheaf, and how to get it",
        .details = "Works without a daemon. ok: fine; warn: works, but slower "
                   "or for fewer users;\nfail: will not work (exit code 1).\n",
        .examples = "sheaf doctor\nsheaf doctor --json\nsheaf doctor --quiet",
        .options = options,
        .run = run,
};
