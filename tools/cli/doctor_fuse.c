/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of what mounts need: device, helper program, library. */
#define FUSE_USE_VERSION 314

#include "tools/cli/doctor.h"

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/stat.h>

static void check_device(struct doctor *doctor)
{
        sheaf_autofd int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

        if (fd >= 0)
                doctor_line(doctor, DOCTOR_OK, "fuse device", NULL,
                        "/dev/fuse opens");
        else if (errno == ENOENT || errno == ENODEV || errno == ENXIO)
                doctor_line(doctor, DOCTOR_FAIL, "fuse device",
                        "modprobe fuse; for a container: --device /dev/fuse",
                        "/dev/fuse: %s", strerror(errno));
        else
                doctor_line(doctor, DOCTOR_FAIL, "fuse device",
                        "chmod 0666 /dev/fuse (the usual mode); for a "
                        "container: --device /dev/fuse",
                        "/dev/fuse: %s", strerror(errno));
}

/* The first @name on PATH. */
static bool find_program(const char *name, char path[PATH_MAX])
{
        const char *dirs = getenv("PATH");

        for (; dirs && *dirs; dirs += strspn(dirs, ":")) {
                size_t len = strcspn(dirs, ":");

                snprintf(path, PATH_MAX, "%.*s/%s", (int)len, dirs, name);
                if (access(path, X_OK) == 0)
                        return true;
                dirs += len;
        }
        return false;
}

static void check_helper(struct doctor *doctor)
{
        static const char remedy[] = "apt-get install fuse3";
        char path[PATH_MAX];
        struct stat st;

        if (!find_program("fusermount3", path)) {
                doctor_line(doctor, geteuid() == 0 ? DOCTOR_WARN : DOCTOR_FAIL,
                        "fusermount3", remedy,
                        "not on PATH; only root can mount without it");
                return;
        }
        if (geteuid() != 0 && stat(path, &st) == 0 && !(st.st_mode & S_ISUID))
                doctor_line(doctor, DOCTOR_FAIL, "fusermount3",
                        "chmod u+s, or ask the administrator to mount",
                        "%s is not setuid: only root can mount", path);
        else
                doctor_line(doctor, DOCTOR_OK, "fusermount3", NULL, "%s", path);
}

/* Both are asked for by fusermount3 alone: root mounts without it. */
static void check_user(struct doctor *doctor)
{
        enum doctor_level lack = geteuid() == 0 ? DOCTOR_WARN : DOCTOR_FAIL;
        const struct passwd *user = getpwuid(geteuid());

        if (user)
                doctor_line(doctor, DOCTOR_OK, "user name", NULL, "%s",
                        user->pw_name);
        else
                doctor_line(doctor, lack, "user name",
                        "a line for it in /etc/passwd, or another source of "
                        "users in /etc/nsswitch.conf",
                        "uid %u has no name: fusermount3 refuses to mount for "
                        "it",
                        (unsigned int)geteuid());
        if (access("/etc/mtab", F_OK) == 0)
                doctor_line(doctor, DOCTOR_OK, "mount table", NULL,
                        "/etc/mtab is there");
        else
                doctor_line(doctor, lack, "mount table",
                        "ln -s /proc/self/mounts /etc/mtab",
                        "no /etc/mtab: mounts of ordinary users cannot be "
                        "unmounted, since fusermount3 looks there");
}

static bool conf_allows_other(void)
{
        char line[256];
        bool found = false;
        FILE *file = fopen("/etc/fuse.conf", "re");

        if (!file)
                return false;
        while (!found && fgets(line, sizeof(line), file))
                found = !strncmp(
                        line + strspn(line, " \t"), "user_allow_other", 16);
        fclose(file);
        return found;
}

static void check_allow_other(struct doctor *doctor)
{
        if (geteuid() == 0)
                doctor_line(doctor, DOCTOR_OK, "allow_other", NULL,
                        "root may use it");
        else if (conf_allows_other())
                doctor_line(doctor, DOCTOR_OK, "allow_other", NULL,
                        "user_allow_other is in /etc/fuse.conf");
        else
                doctor_line(doctor, DOCTOR_WARN, "allow_other",
                        "an administrator adds the line user_allow_other to "
                        "/etc/fuse.conf",
                        "your mounts are for you alone");
}

static void check_library(struct doctor *doctor)
{
        const char *version = fuse_pkgversion();

#ifdef FUSE_CAP_PASSTHROUGH
        doctor_line(doctor, DOCTOR_OK, "libfuse", NULL,
                "%s, built with passthrough (needs root and Linux 6.9)",
                version);
#else
        doctor_line(doctor, DOCTOR_WARN, "libfuse",
                "libfuse 3.17 or later, as in Debian 13, and a new build; "
                "until then large files go through the page cache",
                "%s, built without passthrough", version);
#endif
}

void doctor_fuse(struct doctor *doctor)
{
        check_device(doctor);
        check_helper(doctor);
        check_user(doctor);
        check_allow_other(doctor);
        check_library(doctor);
}
