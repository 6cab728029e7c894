# SPDX-License-Identifier: Apache-2.0
"""Counters as a dict."""

from __future__ import annotations


# What only grows, by name: all of Dataset.stats() but what is held just now.
COUNTERS = (
    "samples",
    "copied_samples",
    "hits",
    "hit_bytes",
    "misses",
    "from_disk",
    "from_origin",
    "substituted",
    "copies",
    "copy_bytes",
    "miss_wait_s",
    "pace_wait_s",
    "reconnects",
    "origin_samples",
    "origin_bytes",
    "daemon_losses",
    "replaced",
    "quarantined",
    "fetch_s",
    "prep_s",
)


class Stats(dict[str, float]):
    """Counters by name; times in seconds, sizes in bytes."""

    def postfix(self) -> dict[str, str]:
        """Short texts for a progress bar: ``bar.set_postfix(s.postfix())``."""
        hits, misses = self.get("hits", 0), self.get("misses", 0)
        text = {
            "hits": f"{100 * hits / max(1, hits + misses):.1f}%",
            "wait": f"{self.get('miss_wait_s', 0):.1f}s",
        }
        if self.get("replaced"):
            text["replaced"] = str(int(self["replaced"]))
        return text
