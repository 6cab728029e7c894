/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files that nobody can execute, where the kernel can be told so (Linux
 * 6.3): with the sysctl vm.memfd_noexec=2 it makes no others, and up to 6.5
 * wants the flag. */
#ifndef SHEAF_PROTO_MEMFD_H
#define SHEAF_PROTO_MEMFD_H

#include "proto/base.h"

#include <fcntl.h>
#include <sys/mman.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

/* As memfd_create(2), closed on exec: a descriptor or -errno. Without
 * MFD_ALLOW_SEALING in @flags nothing can be sealed, as there. */
static inline int sheaf_memfd(const char *name, unsigned int flags)
{
        sheaf_autofd int fd = -1;

        flags |= MFD_CLOEXEC;
        fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
        if (fd < 0 && errno == EINVAL) {
                fd = memfd_create(name, flags);
                return fd < 0 ? -errno : sheaf_steal_fd(&fd);
        }
        if (fd < 0)
                return -errno;
        /* That flag allows sealing. */
        if (!(flags & MFD_ALLOW_SEALING) && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL))
                return -errno;
        return sheaf_steal_fd(&fd);
}

#endif
