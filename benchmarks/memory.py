"""The memory of this process, read from /proc.

``ru_maxrss`` starts at the parent's peak, so a large parent would hide the child's memory. Linux only.
"""


def process_mb(field: str) -> float:
    """A memory field of this process, such as VmRSS (now) or VmHWM (peak), in 10^6 bytes."""
    with open("/proc/self/status") as status:
        kilobytes = next(line.split()[1] for line in status if line.startswith(field + ":"))
    return int(kilobytes) * 1024 / 1e6
