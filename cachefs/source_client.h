/* SPDX-License-Identifier: Apache-2.0 */
/* A source over an open dataset of libsheaf. */
#ifndef SHEAF_CACHEFS_SOURCE_CLIENT_H
#define SHEAF_CACHEFS_SOURCE_CLIENT_H

#include "cachefs/source.h"

/* Fills @ret_source; it borrows @dataset and @ret_info, which the caller
 * keeps until the source is no longer used. */
void sheaf_source_client(struct sheaf_dataset *dataset,
        struct sheaf_dataset_info *ret_info, struct sheaf_source *ret_source);

#endif
