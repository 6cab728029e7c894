/* SPDX-License-Identifier: Apache-2.0 */
/* Keyed authentication of what the store writes (SipHash-2-4, 128 bits):
 * payloads are users' bytes and may imitate headers, but not their MAC.
 * Thread: not shared; make one a thread. */
#ifndef SHEAF_DAEMON_STORE_MAC_H
#define SHEAF_DAEMON_STORE_MAC_H

#include "proto/layout_disk.h"

struct sheaf_mac;

#define SHEAF_MAC_KEY_BYTES 32

/* -ENOMEM; -ENOSYS when the crypto library lacks the function. */
SHEAF_MUST_CHECK int sheaf_mac_new(
        const uint8_t key[SHEAF_MAC_KEY_BYTES], struct sheaf_mac **ret_mac);
void sheaf_mac_free(struct sheaf_mac *mac);

void sheaf_mac_of(struct sheaf_mac *mac, const void *data, size_t len_bytes,
        uint8_t ret_mac[SHEAF_DISK_MAC_BYTES]);
/* Sets, or checks, the MAC in the last bytes of a structure. */
void sheaf_mac_seal(struct sheaf_mac *mac, void *record, size_t len_bytes);
bool sheaf_mac_good(
        struct sheaf_mac *mac, const void *record, size_t len_bytes);

/* Reads DIR/key, or makes it. 0; -EBADMSG when it is damaged; -errno. */
SHEAF_MUST_CHECK int sheaf_mac_key(
        int dir_fd, uint8_t ret_key[SHEAF_MAC_KEY_BYTES]);

#endif
