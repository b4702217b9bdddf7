"""Convolutional networks for images, in the variants that torchvision publishes."""

from policies.catalogue.architecture import Cost, Unit, Units, convolution, dense, in_a_row

CLASSES = 1000


def resnet50() -> Units:
    """ResNet-50 (arXiv 1512.03385), with the stride in the 3 x 3 convolution; 224 x 224 images."""
    units = [Unit("stem", convolution(3, 64, (7, 7), 112), 64 * 56 * 56)]
    inputs = 64
    for group, (blocks, width, size) in enumerate(((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)), start=1):
        for block in range(blocks):
            before = size * 2 if block == 0 and group > 1 else size
            cost = convolution(inputs, width, (1, 1), before) + convolution(width, width, (3, 3), size)
            cost += convolution(width, 4 * width, (1, 1), size)
            if block == 0:
                cost += convolution(inputs, 4 * width, (1, 1), size)
            inputs = 4 * width
            units.append(Unit(f"layer{group}.{block}", cost, inputs * size * size))
    return in_a_row([*units, Unit("classifier", dense(inputs, CLASSES), CLASSES)])


def vgg19() -> Units:
    """VGG-19 without batch normalisation (arXiv 1409.1556); 224 x 224 images."""
    units: list[Unit] = []
    inputs = 3
    for group, (layers, width, size) in enumerate(
        ((2, 64, 224), (2, 128, 112), (4, 256, 56), (4, 512, 28), (4, 512, 14)), start=1
    ):
        for layer in range(layers):
            cost = convolution(inputs, width, (3, 3), size, bias=True, norm=False)
            pooled = size // 2 if layer == layers - 1 else size
            units.append(Unit(f"conv{group}_{layer + 1}", cost, width * pooled * pooled))
            inputs = width
    for name, inputs, outputs in (("fc6", 512 * 7 * 7, 4096), ("fc7", 4096, 4096), ("fc8", 4096, CLASSES)):
        units.append(Unit(name, dense(inputs, outputs), outputs))
    return in_a_row(units)


Step = tuple[int, tuple[int, int], int]
"""Output channels, kernel and output size of a convolution."""


class _Inception:
    """Collects modules whose branches run side by side and are concatenated."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.edges: list[tuple[str, str]] = []
        self.channels = 3
        self.last = ""

    def chain(self, name: str, steps: list[Step], pooled: int | None = None) -> None:
        """A row of convolutions; ``pooled`` is the output's size after a pooling that follows."""
        cost, channels = _row(self.channels, steps)
        size = steps[-1][2] if pooled is None else pooled
        self.units.append(Unit(name, cost, channels * size * size))
        if self.last:
            self.edges.append((self.last, name))
        self.channels, self.last = channels, name

    def module(self, name: str, branches: dict[str, list[Step]], size: int, passed: int = 0) -> None:
        """Branches side by side and their concatenation; ``passed`` channels are pooled and handed on unchanged.

        A branch named ``...+`` ends in two convolutions side by side, (1, 3) and (3, 1), whose outputs are concatenated.
        """
        outputs = passed
        for branch, steps in branches.items():
            cost, channels = _row(self.channels, steps)
            if branch.endswith("+"):
                cost += convolution(channels, 384, (1, 3), size) + convolution(channels, 384, (3, 1), size)
                channels = 768
            unit = f"{name}.{branch.rstrip('+')}"
            self.units.append(Unit(unit, cost, channels * size * size))
            self.edges += [(self.last, unit), (unit, name)]
            outputs += channels
        if passed:
            self.edges.append((self.last, name))
        self.units.append(Unit(name, Cost(), outputs * size * size))
        self.channels, self.last = outputs, name


def _row(channels: int, steps: list[Step]) -> tuple[Cost, int]:
    cost = Cost()
    for outputs, kernel, size in steps:
        cost += convolution(channels, outputs, kernel, size)
        channels = outputs
    return cost, channels


def inception_v3() -> Units:
    """Inception-v3 (arXiv 1512.00567) with its auxiliary classifier; 299 x 299 images."""
    one, three = (1, 1), (3, 3)
    net = _Inception()
    net.chain("stem1", [(32, three, 149), (32, three, 147), (64, three, 147)], pooled=73)
    net.chain("stem2", [(80, one, 73), (192, three, 71)], pooled=35)
    for name, pool in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        net.module(
            name,
            {
                "1x1": [(64, one, 35)],
                "5x5": [(48, one, 35), (64, (5, 5), 35)],
                "3x3dbl": [(64, one, 35), (96, three, 35), (96, three, 35)],
                "pool": [(pool, one, 35)],
            },
            35,
        )
    net.module(
        "mixed6a",
        {"3x3": [(384, three, 17)], "3x3dbl": [(64, one, 35), (96, three, 35), (96, three, 17)]},
        17,
        passed=288,
    )
    for name, c in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        across, down = (1, 7), (7, 1)
        net.module(
            name,
            {
                "1x1": [(192, one, 17)],
                "7x7": [(c, one, 17), (c, across, 17), (192, down, 17)],
                "7x7dbl": [(c, one, 17), (c, down, 17), (c, across, 17), (c, down, 17), (192, across, 17)],
                "pool": [(192, one, 17)],
            },
            17,
        )
    auxiliary, channels = _row(net.channels, [(128, one, 5), (768, (5, 5), 1)])
    net.units.append(Unit("auxiliary", auxiliary + dense(channels, CLASSES), CLASSES))
    net.edges.append((net.last, "auxiliary"))
    net.module(
        "mixed7a",
        {
            "3x3": [(192, one, 17), (320, three, 8)],
            "7x7x3": [(192, one, 17), (192, (1, 7), 17), (192, (7, 1), 17), (192, three, 8)],
        },
        8,
        passed=768,
    )
    for name in ("mixed7b", "mixed7c"):
        branches = {
            "1x1": [(320, one, 8)],
            "3x3+": [(384, one, 8)],
            "3x3dbl+": [(448, one, 8), (384, three, 8)],
            "pool": [(192, one, 8)],
        }
        net.module(name, branches, 8)
    net.units.append(Unit("classifier", dense(net.channels, CLASSES), CLASSES))
    net.edges.append((net.last, "classifier"))
    return tuple(net.units), tuple(net.edges)
