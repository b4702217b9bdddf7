"""A fixed piece of plain Python, timed in the same run as a benchmark: ratios to it compare between machines."""

import heapq
import time

ROUNDS = 200_000


def calibrate(repeats: int = 3) -> float:
    """CPU seconds of one unit: what an event loop is made of (heap, dictionary, floats), the best of some repeats."""
    return min(_once() for _ in range(repeats))


def _once() -> float:
    started_s = time.process_time()
    heap: list[tuple[float, int]] = []
    seen: dict[int, float] = {}
    value = 0.5
    for number in range(ROUNDS):
        value = (value * 1103.515245 + 0.12345) % 1.0
        heapq.heappush(heap, (value, number))
        seen[number & 4095] = value
        if len(heap) > 1000:
            heapq.heappop(heap)
    return time.process_time() - started_s


def line(unit_s: float) -> str:
    """What to print above a benchmark's table."""
    return (
        f"calibration: {ROUNDS:,} rounds of a plain heap and dictionary loop take {unit_s:.3f} CPU seconds (one unit)"
    )
