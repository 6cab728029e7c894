/* SPDX-License-Identifier: Apache-2.0 */
/* MACs of headers and summaries, and the key file of a cache directory.
 *
 *  1 a MAC covers everything before it in its structure
 *  2 the key never changes while a cache directory lives; a lost key makes
 *    its contents unreadable, which costs refetches and nothing else */
#include "daemon/store/mac.h"

#include "proto/io.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <sys/random.h>

#define SIPHASH_KEY_BYTES 16

struct sheaf_mac {
        EVP_MAC_CTX *ctx;
        uint8_t key[SIPHASH_KEY_BYTES];
};

int sheaf_mac_new(
        const uint8_t key[SHEAF_MAC_KEY_BYTES], struct sheaf_mac **ret_mac)
{
        struct sheaf_mac *mac = sheaf_new(struct sheaf_mac, 1);
        EVP_MAC *algorithm;

        if (!mac)
                return -ENOMEM;
        algorithm = EVP_MAC_fetch(NULL, "SIPHASH", NULL);
        if (algorithm)
                mac->ctx = EVP_MAC_CTX_new(algorithm);
        EVP_MAC_free(algorithm);
        if (!mac->ctx) {
                free(mac);
                return -ENOSYS;
        }
        memcpy(mac->key, key, sizeof(mac->key));
        *ret_mac = mac;
        return 0;
}

void sheaf_mac_free(struct sheaf_mac *mac)
{
        if (!mac)
                return;
        EVP_MAC_CTX_free(mac->ctx);
        free(mac);
}

void sheaf_mac_of(struct sheaf_mac *mac, const void *data, size_t len_bytes,
        uint8_t ret_mac[SHEAF_DISK_MAC_BYTES])
{
        size_t size = SHEAF_DISK_MAC_BYTES, got = 0;
        const OSSL_PARAM params[] = {
                OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
                OSSL_PARAM_construct_end(),
        };

        if (!EVP_MAC_init(mac->ctx, mac->key, sizeof(mac->key), params) ||
                !EVP_MAC_update(mac->ctx, data, len_bytes) ||
                !EVP_MAC_final(mac->ctx, ret_mac, &got, SHEAF_DISK_MAC_BYTES) ||
                got != SHEAF_DISK_MAC_BYTES)
                abort(); /* no memory inside the library: nothing to serve */
}

void sheaf_mac_seal(struct sheaf_mac *mac, void *record, size_t len_bytes)
{
        size_t covered = len_bytes - SHEAF_DISK_MAC_BYTES;

        sheaf_mac_of(mac, record, covered, (uint8_t *)record + covered);
}

bool sheaf_mac_good(struct sheaf_mac *mac, const void *record, size_t len_bytes)
{
        size_t covered = len_bytes - SHEAF_DISK_MAC_BYTES;
        uint8_t right[SHEAF_DISK_MAC_BYTES], differ = 0;
        const uint8_t *have = (const uint8_t *)record + covered;

        sheaf_mac_of(mac, record, covered, right);
        for (size_t i = 0; i < sizeof(right); i++)
                differ |= right[i] ^ have[i];
        return !differ;
}

int sheaf_mac_key(int dir_fd, uint8_t ret_key[SHEAF_MAC_KEY_BYTES])
{
        uint8_t key[SHEAF_MAC_KEY_BYTES];
        sheaf_autofd int fd = sheaf_again(
                openat(dir_fd, "key", O_RDONLY | O_CLOEXEC | O_NOFOLLOW));

        if (fd >= 0) {
                if (sheaf_read_at(fd, key, sizeof(key), 0))
                        return -EBADMSG;
                memcpy(ret_key, key, sizeof(key));
                return 0;
        }
        if (errno != ENOENT)
                return -errno;
        if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
                return -EIO;
        fd = sheaf_again(openat(dir_fd, "key.tmp",
                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (fd < 0)
                return -errno;
        if (sheaf_write_all(fd, key, sizeof(key)))
                return -ENOSPC;
        if (sheaf_again(fdatasync(fd)) ||
                renameat(dir_fd, "key.tmp", dir_fd, "key") ||
                sheaf_again(fsync(dir_fd)))
                return -errno;
        memcpy(ret_key, key, sizeof(key));
        return 0;
}
