/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of kernel, memory and limits. Each tries the thing itself where it
 * can: versions and files only explain why it did not work. */
#include "proto/memfd.h"
#include "proto/pages.h"
#include "proto/size.h"
#include "tools/cli/doctor.h"

#include <fcntl.h>
#include <limits.h>
#include <liburing.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define FILES_WANTED      65536
#define MEMORY_WANTED     (2 * SHEAF_GIB)
#define ARENA_PAGES_LIMIT "the arena is then at most 16 GiB by default"

static void check_kernel(struct doctor *doctor)
{
        struct utsname name;
        unsigned int major = 0, minor = 0;

        if (uname(&name) ||
                sscanf(name.release, "%u.%u", &major, &minor) != 2) {
                doctor_line(
                        doctor, DOCTOR_WARN, "kernel", NULL, "version unknown");
                return;
        }
        if (major < 5 || (major == 5 && minor < 6))
                doctor_line(doctor, DOCTOR_FAIL, "kernel",
                        "Linux 5.6 or later has openat2, which keeps readers "
                        "inside an origin",
                        "%s", name.release);
        else if (major < 6 || (major == 6 && minor < 9))
                doctor_line(doctor, DOCTOR_OK, "kernel", NULL,
                        "%s (6.9 or later adds passthrough mounts)",
                        name.release);
        else
                doctor_line(
                        doctor, DOCTOR_OK, "kernel", NULL, "%s", name.release);
}

static void check_uring(struct doctor *doctor)
{
        static const char file[] = "/proc/sys/kernel/io_uring_disabled";
        struct io_uring ring;
        char disabled[16] = "";
        int rc = io_uring_queue_init(8, &ring, 0);

        if (rc >= 0) {
                io_uring_queue_exit(&ring);
                doctor_line(doctor, DOCTOR_OK, "io_uring", NULL, "works");
                return;
        }
        if (doctor_read(file, disabled, sizeof(disabled)) && *disabled != '0')
                doctor_line(doctor, DOCTOR_WARN, "io_uring",
                        "sysctl -w kernel.io_uring_disabled=0 (until then "
                        "disk reads use threads)",
                        "%s, %s is %s", strerror(-rc), file, disabled);
        else if (rc == -EPERM || rc == -ENOSYS)
                doctor_line(doctor, DOCTOR_WARN, "io_uring",
                        "allow io_uring_setup, _enter and _register in the "
                        "seccomp profile of this container (until then disk "
                        "reads use threads)",
                        "%s: not allowed here", strerror(-rc));
        else
                doctor_line(doctor, DOCTOR_WARN, "io_uring",
                        "raise the locked memory limit: ulimit -l unlimited",
                        "%s", strerror(-rc));
}

static void check_memfd(struct doctor *doctor)
{
        sheaf_autofd int fd = sheaf_memfd("sheaf-doctor", MFD_ALLOW_SEALING);

        if (fd < 0)
                doctor_line(doctor, DOCTOR_FAIL, "shared memory",
                        "allow memfd_create in the seccomp profile",
                        "memfd_create: %s", strerror(-fd));
        else if (ftruncate(fd, 4096) ||
                 fcntl(fd, F_ADD_SEALS,
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE |
                                 F_SEAL_SEAL))
                doctor_line(doctor, DOCTOR_FAIL, "shared memory",
                        "Linux 5.1 or later seals memory against later writes",
                        "sealed memfd: %s", strerror(errno));
        else
                doctor_line(doctor, DOCTOR_OK, "shared memory", NULL,
                        "sealed memfds work");
}

static uint64_t meminfo(const char *key)
{
        unsigned long long value = 0;
        char line[128];
        FILE *file = fopen("/proc/meminfo", "re");

        if (!file)
                return 0;
        while (fgets(line, sizeof(line), file)) {
                size_t len = strlen(key);

                if (!strncmp(line, key, len) && line[len] == ':') {
                        sscanf(line + len + 1, "%llu", &value);
                        break;
                }
        }
        fclose(file);
        return value;
}

static void check_pages(struct doctor *doctor)
{
        char thp[128] = "";
        uint64_t huge = meminfo("HugePages_Total");
        const char *chosen;

        if (huge) {
                char size[SHEAF_SIZE_TEXT_MAX];

                doctor_line(doctor, DOCTOR_OK, "huge pages", NULL,
                        "%llu reserved, %llu free, %s each",
                        (unsigned long long)huge,
                        (unsigned long long)meminfo("HugePages_Free"),
                        sheaf_size_text(
                                meminfo("Hugepagesize") * SHEAF_KIB, size));
                return;
        }
        if (!doctor_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                    thp, sizeof(thp)))
                snprintf(thp, sizeof(thp), "not in this kernel");
        chosen = strchr(thp, '[');
        if (chosen && strncmp(chosen, "[never", 6) &&
                strncmp(chosen, "[deny", 5))
                doctor_line(doctor, DOCTOR_OK, "huge pages", NULL,
                        "none reserved; transparent ones for shared memory: "
                        "%s",
                        thp);
        else if (sheaf_pages_on_request())
                doctor_line(doctor, DOCTOR_OK, "huge pages", NULL,
                        "none reserved; the kernel makes them of shared "
                        "memory on request");
        else
                doctor_line(doctor, DOCTOR_WARN, "huge pages",
                        "Linux 6.1 or later makes them on request, unless "
                        "/sys/kernel/mm/transparent_hugepage/shmem_enabled is "
                        "deny; else reserve some with sysctl "
                        "vm.nr_hugepages; " ARENA_PAGES_LIMIT,
                        "none reserved; transparent ones for shared memory: "
                        "%s",
                        thp);
}

static const char *limit_text(rlim_t value, char buf[32])
{
        if (value == RLIM_INFINITY)
                snprintf(buf, 32, "unlimited");
        else
                snprintf(buf, 32, "%llu", (unsigned long long)value);
        return buf;
}

static void check_limits(struct doctor *doctor)
{
        struct rlimit files, locked;
        char soft[32], hard[32];

        if (getrlimit(RLIMIT_NOFILE, &files) ||
                getrlimit(RLIMIT_MEMLOCK, &locked))
                return;
        limit_text(files.rlim_cur, soft);
        limit_text(files.rlim_max, hard);
        doctor_line(doctor,
                files.rlim_max < FILES_WANTED ? DOCTOR_WARN : DOCTOR_OK,
                "open files",
                "raise the hard limit: LimitNOFILE= of the service, or "
                "/etc/security/limits.conf; 65536 suffice",
                "limit %s, at most %s (sheafd raises it by itself)", soft,
                hard);
        doctor_line(doctor, DOCTOR_OK, "locked memory", NULL,
                "limit %s bytes (io_uring before Linux 5.12 needs some)",
                limit_text(locked.rlim_cur, soft));
}

/* The smallest limit from the own cgroup up to the root of version 2. */
static uint64_t cgroup_limit_bytes(void)
{
        char line[PATH_MAX] = "", path[2 * PATH_MAX], text[64];
        uint64_t limit = UINT64_MAX;
        FILE *file = fopen("/proc/self/cgroup", "re");

        if (!file)
                return limit;
        while (fgets(line, sizeof(line), file) && strncmp(line, "0::", 3))
                ;
        fclose(file);
        if (strncmp(line, "0::", 3))
                return limit;
        line[strcspn(line, "\n")] = '\0';
        for (char *own = line + 3;;) {
                char *slash;

                snprintf(
                        path, sizeof(path), "/sys/fs/cgroup%s/memory.max", own);
                if (doctor_read(path, text, sizeof(text)) && *text != 'm')
                        limit = SHEAF_MIN(
                                limit, (uint64_t)strtoull(text, NULL, 10));
                slash = strrchr(own, '/');
                if (!slash)
                        return limit;
                *slash = '\0';
        }
}

static void check_memory(struct doctor *doctor)
{
        uint64_t total = meminfo("MemTotal") * SHEAF_KIB;
        uint64_t limit = cgroup_limit_bytes();
        char a[SHEAF_SIZE_TEXT_MAX], b[SHEAF_SIZE_TEXT_MAX];

        sheaf_size_text(total, a);
        if (limit >= total)
                doctor_line(doctor,
                        total < MEMORY_WANTED ? DOCTOR_WARN : DOCTOR_OK,
                        "memory", "give sheafd a small --memory", "%s", a);
        else
                doctor_line(doctor,
                        limit < MEMORY_WANTED ? DOCTOR_WARN : DOCTOR_OK,
                        "memory",
                        "keep --memory well below the limit: the arena counts "
                        "towards it",
                        "%s, but the cgroup allows only %s", a,
                        sheaf_size_text(limit, b));
}

void doctor_host(struct doctor *doctor)
{
        check_kernel(doctor);
        check_uring(doctor);
        check_memfd(doctor);
        check_pages(doctor);
        check_memory(doctor);
        check_limits(doctor);
}
