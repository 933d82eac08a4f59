"""What the kernels of `triton_kernels` are made of, in Triton's language.

Work is cut into *windows*: the 2×2 pixels of the convolution's output that are pooled into one (half windows at an
odd edge included while statistics are taken). A program computes the four convolutions of a tile of windows side by
side, so that pooling happens in registers. `narrow` parts are for few input channels: the 4×4 input pixels below a
window are one row of a matrix, and recomputing the convolution is cheaper than reading it back. `wide` parts go
pixel by pixel through those 4×4, each a [windows, channels] tile that serves up to four taps in each of four outputs.

Names: images are H×W with C channels, the convolution has F filters and gives HC×WC pixels; CP, FP and K are channels,
filters and matrix rows rounded up to what `tl.dot` takes. A position in a window is 0..3 in reading order, 4 for none.
Offsets inside one server's images fit 32 bits; a server's base does not. Every sum has a fixed order: no atomics.
"""

# mypy: ignore-errors
# ruff: noqa: N803
# (mypy: this is Triton's language, not Python's. ruff: capitals are compile-time constants, as everywhere in Triton.)

try:
    import triton
    import triton.language as tl

    # Without this, batches of 1, of multiples of 16 and of other sizes would each be compiled.
    jit = triton.jit(do_not_specialize=["batch", "servers", "salt", "threshold"])
except ImportError:  # no GPU build of torch: the module can be imported, the kernels not called
    from types import SimpleNamespace

    tl = SimpleNamespace(constexpr=int)

    def jit(function):
        """Leaves the kernel as it is."""
        return function


@jit
def locate(tile, DOWN: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr):
    """Each window's image, and its upper left pixel in the convolution's output."""
    window = tile * BLOCK + tl.arange(0, BLOCK)
    inside = window % (DOWN * ACROSS)
    return window // (DOWN * ACROSS), inside // ACROSS * 2, inside % ACROSS * 2


@jit
def present(live, top, left, HC: tl.constexpr, WC: tl.constexpr, POSITION):
    """Whether a position of a window exists: at an odd edge half of them do not."""
    return live & (top + POSITION // 2 < HC) & (left + POSITION % 2 < WC)


@jit
def pixel(image, top, left, HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr):
    """Offsets [windows, filters] of each window's upper left pixel in the convolution's output."""
    return ((image * HC + top) * WC + left)[:, None] * F + tl.arange(0, FP)[None, :]


@jit
def pooled_pixel(image, top, left, HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr):
    """Offsets [windows, filters] in the pooled output, and which of them exist in it."""
    whole = (top + 1 < HC) & (left + 1 < WC)
    offset = ((image * (HC // 2) + top // 2) * (WC // 2) + left // 2)[:, None] * F + tl.arange(0, FP)[None, :]
    return offset, whole[:, None] & (tl.arange(0, FP) < F)[None, :]


@jit
def load_patches(
    x, image, top, left, live, first,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The 4×4 input pixels below each window as rows of a matrix: K of (row, column, channel) from `first` on."""
    k = first + tl.arange(0, K)[None, :]
    row = top[:, None] - PADDING + k // (4 * C)
    column = left[:, None] - PADDING + k // C % 4
    inside = live[:, None] & (k < 16 * C) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    return tl.load(x + ((image[:, None] * H + row) * W + column) * C + k % C, mask=inside, other=0.0)


@jit
def narrow_products(
    patches, weight,
    C: tl.constexpr, F: tl.constexpr, K: tl.constexpr, FP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The four convolutions of each window; `weight` [4, F, 16 C] has the 3×3 kernels set into 4×4."""
    k, f = tl.arange(0, K)[:, None], tl.arange(0, FP)[None, :]
    inside = (k < 16 * C) & (f < F)
    at = weight + f * (16 * C) + k  # k next to each other, as tensor cores want TF32
    y0 = tl.dot(patches, tl.load(at, mask=inside, other=0.0), input_precision=PRECISION)
    y1 = tl.dot(patches, tl.load(at + 16 * C * F, mask=inside, other=0.0), input_precision=PRECISION)
    y2 = tl.dot(patches, tl.load(at + 32 * C * F, mask=inside, other=0.0), input_precision=PRECISION)
    y3 = tl.dot(patches, tl.load(at + 48 * C * F, mask=inside, other=0.0), input_precision=PRECISION)
    return y0, y1, y2, y3


@jit
def load_pixel(
    x, image, row, column, live,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """One input pixel of each window: [windows, CP] channels from FIRST on."""
    inside = live & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    c = FIRST + tl.arange(0, CP)[None, :]
    offset = ((image * H + row) * W + column)[:, None] * C
    return tl.load(x + offset + c, mask=inside[:, None] & (c < C), other=0.0)


@jit
def add_tap(
    left, right, p, q, weight,
    C: tl.constexpr, F: tl.constexpr, CP: tl.constexpr, FP: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds one tap, `weight` [F, C], of pixels `p` and `q` to two neighbouring outputs."""
    c, f = FIRST + tl.arange(0, CP)[:, None], tl.arange(0, FP)[None, :]
    taps = tl.load(weight + f * C + c, mask=(c < C) & (f < F), other=0.0)
    left = tl.dot(p, taps, left, input_precision=PRECISION)
    right = tl.dot(q, taps, right, input_precision=PRECISION)
    return left, right


@jit
def add_taps(
    y0, y1, y2, y3, p, q, weight, dy, dx,
    C: tl.constexpr, F: tl.constexpr, CP: tl.constexpr, FP: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds pixels dx and dx + 1 of row dy, times tap dx, to left and right outputs."""
    if dy < 3:  # to the upper ones by row dy of the taps
        y0, y1 = add_tap(y0, y1, p, q, weight + (dy * 3 + dx) * F * C, C, F, CP, FP, FIRST, PRECISION)
    if dy > 0:  # to the lower ones by the row before
        y2, y3 = add_tap(y2, y3, p, q, weight + (dy * 3 + dx - 3) * F * C, C, F, CP, FP, FIRST, PRECISION)
    return y0, y1, y2, y3


@jit
def wide_products(
    x, weight, image, top, left, live,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr,
    CP: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The four convolutions of each window; `weight` is [3, 3, F, C], of which CP channels are taken at a time.

    Unrolled for tensor cores; without them ("ieee") that would be ten thousand instructions in a row, and no registers.
    """
    y0 = tl.zeros((BLOCK, FP), tl.float32)
    y1 = tl.zeros((BLOCK, FP), tl.float32)
    y2 = tl.zeros((BLOCK, FP), tl.float32)
    y3 = tl.zeros((BLOCK, FP), tl.float32)
    row, column = top - PADDING, left - PADDING
    for first in tl.static_range(0, C, CP):
        if PRECISION == "ieee" and x.dtype.element_ty == tl.float32:
            for step in range(12):
                dy, dx = step // 3, step % 3
                p = load_pixel(x, image, row + dy, column + dx, live, H, W, C, CP, first)
                q = load_pixel(x, image, row + dy, column + dx + 1, live, H, W, C, CP, first)
                y0, y1, y2, y3 = add_taps(y0, y1, y2, y3, p, q, weight, dy, dx, C, F, CP, FP, first, PRECISION)
        else:
            for dy in tl.static_range(4):
                q = load_pixel(x, image, row + dy, column, live, H, W, C, CP, first)
                for dx in tl.static_range(3):
                    p = q
                    q = load_pixel(x, image, row + dy, column + dx + 1, live, H, W, C, CP, first)
                    y0, y1, y2, y3 = add_taps(y0, y1, y2, y3, p, q, weight, dy, dx, C, F, CP, FP, first, PRECISION)
    return y0, y1, y2, y3


@jit
def squares(y, mean, there):
    """Squared distances from the mean, 0 where there is no pixel."""
    return tl.where(there[:, None], (y - mean[None, :]) * (y - mean[None, :]), 0.0)


@jit
def store_moments(
    pixels, means, squared, at, y0, y1, y2, y3, top, left, live,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """A tile's pixels, their mean and their squared distances from it, for each channel; `at` is the tile's place."""
    t0, t1 = present(live, top, left, HC, WC, 0), present(live, top, left, HC, WC, 1)
    t2, t3 = present(live, top, left, HC, WC, 2), present(live, top, left, HC, WC, 3)
    count = tl.sum(t0.to(tl.float32) + t1.to(tl.float32) + t2.to(tl.float32) + t3.to(tl.float32), axis=0)
    upper = tl.where(t0[:, None], y0, 0.0) + tl.where(t1[:, None], y1, 0.0)
    lower = tl.where(t2[:, None], y2, 0.0) + tl.where(t3[:, None], y3, 0.0)
    mean = tl.sum(upper + lower, axis=0) / count
    spread = squares(y0, mean, t0) + squares(y1, mean, t1) + squares(y2, mean, t2) + squares(y3, mean, t3)
    f = tl.arange(0, FP)
    tl.store(pixels + at, count)
    tl.store(means + at * F + f, mean, mask=f < F)
    tl.store(squared + at * F + f, tl.sum(spread, axis=0), mask=f < F)


@jit
def store_pooled(
    pooled, which, y0, y1, y2, y3, mean, gain, shift, image, top, left, real, batch,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """Batch norm, the largest of each window (of equal ones the first) and ReLU; 0 where the image is not real."""
    best = (y0 - mean[None, :]) * gain[None, :] + shift[None, :]
    n1 = (y1 - mean[None, :]) * gain[None, :] + shift[None, :]
    first = tl.where(n1 > best, 1, 0)
    best = tl.where(n1 > best, n1, best)
    n2 = (y2 - mean[None, :]) * gain[None, :] + shift[None, :]
    first = tl.where(n2 > best, 2, first)
    best = tl.where(n2 > best, n2, best)
    n3 = (y3 - mean[None, :]) * gain[None, :] + shift[None, :]
    first = tl.where(n3 > best, 3, first)
    best = tl.where(n3 > best, n3, best)
    closed = (best <= 0.0) | (image >= real)[:, None]  # not `best > 0`, which would hide a NaN
    offset, whole = pooled_pixel(image, top, left, HC, WC, F, FP)
    whole = whole & (image < batch)[:, None]
    tl.store(pooled + offset, tl.where(closed, 0.0, best), mask=whole)
    tl.store(which + offset, tl.where(closed, 4, first).to(tl.uint8), mask=whole)


@jit
def load_gradient(
    gradient, which, image, top, left, live,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """What comes back to each window, 0 where none passes, and the position that it goes to."""
    offset, whole = pooled_pixel(image, top, left, HC, WC, F, FP)
    position = tl.load(which + offset, mask=whole & live[:, None], other=4).to(tl.int32)
    passed = tl.load(gradient + offset, mask=whole & live[:, None], other=0.0)
    return tl.where(position < 4, passed, 0.0), position


@jit
def load_channel(values, server, F: tl.constexpr, FP: tl.constexpr):
    """One number a channel, [F] of [S, F]."""
    f = tl.arange(0, FP)
    return tl.load(values + server * F + f, mask=f < F, other=0.0)
