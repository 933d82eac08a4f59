"""GPU kernels of stages with many input channels, and those for all stages; see `triton_parts` for the names."""

# mypy: ignore-errors
# ruff: noqa: N803, N806
# (mypy: this is Triton's language, not Python's. ruff: capitals are compile-time constants, as everywhere in Triton.)

from hatdfed.fleets.kernels.triton.parts import (
    jit,
    load_channel,
    load_gradient,
    locate,
    pixel,
    present,
    store_moments,
    store_pooled,
    tl,
    wide_products,
)


@jit
def combine_statistics(
    counts, pixels, means, squared, mean, variance, batch,
    WINDOWS: tl.constexpr, PIXELS: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """One server's mean and variance from those of its tiles: distances within tiles, and between them."""
    server = tl.program_id(0).to(tl.int64)
    tiles = tl.cdiv(batch * WINDOWS, BLOCK)
    real = tl.load(counts + server).to(tl.int32)
    used = tl.cdiv(real * WINDOWS, BLOCK)
    total = tl.maximum(real, 1).to(tl.float32) * PIXELS
    f = tl.arange(0, FP)[None, :]
    centre = tl.zeros((FP,), tl.float32)
    for start in range(0, used, CHUNK):
        tile = start + tl.arange(0, CHUNK)
        at = server * tiles + tile
        number = tl.load(pixels + at, mask=tile < used, other=0.0)[:, None]
        inside = (tile < used)[:, None] & (f < F)
        centre += tl.sum(number * tl.load(means + at[:, None] * F + f, mask=inside, other=0.0), axis=0) / total
    spread = tl.zeros((FP,), tl.float32)
    for start in range(0, used, CHUNK):
        tile = start + tl.arange(0, CHUNK)
        at = server * tiles + tile
        number = tl.load(pixels + at, mask=tile < used, other=0.0)[:, None]
        inside = (tile < used)[:, None] & (f < F)
        apart = tl.load(means + at[:, None] * F + f, mask=inside, other=0.0) - centre[None, :]
        within = tl.load(squared + at[:, None] * F + f, mask=inside, other=0.0)
        spread += tl.sum(within + number * apart * apart, axis=0) / total
    f = tl.arange(0, FP)
    tl.store(mean + server * F + f, centre, mask=f < F)
    tl.store(variance + server * F + f, spread, mask=f < F)


@jit
def store_windows(
    y, y0, y1, y2, y3, image, top, left, live,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """The four convolutions of each window to where they belong in an image."""
    filters = (tl.arange(0, FP) < F)[None, :]
    at = y + pixel(image, top, left, HC, WC, F, FP)
    tl.store(at, y0, mask=present(live, top, left, HC, WC, 0)[:, None] & filters)
    tl.store(at + F, y1, mask=present(live, top, left, HC, WC, 1)[:, None] & filters)
    tl.store(at + WC * F, y2, mask=present(live, top, left, HC, WC, 2)[:, None] & filters)
    tl.store(at + (WC + 1) * F, y3, mask=present(live, top, left, HC, WC, 3)[:, None] & filters)


@jit
def wide_convolve(
    x, weight, counts, y, pixels, means, squared, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr,
    CP: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr, MOMENTS: tl.constexpr,
):  # fmt: skip
    """The convolution of real images and its moments; without moments (input gradients), 0 for the other images."""
    HC: tl.constexpr = H + 2 * PADDING - 2
    WC: tl.constexpr = W + 2 * PADDING - 2
    WINDOWS: tl.constexpr = ((HC + 1) // 2) * ((WC + 1) // 2)
    tiles = tl.cdiv(batch * WINDOWS, BLOCK)
    tile = tl.program_id(0) % tiles
    server = (tl.program_id(0) // tiles).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    image, top, left = locate(tile, (HC + 1) // 2, (WC + 1) // 2, BLOCK)
    y += server * batch * (HC * WC * F)
    if tile * BLOCK >= real * WINDOWS:
        if not MOMENTS:
            zero = tl.zeros((BLOCK, FP), tl.float32)
            store_windows(y, zero, zero, zero, zero, image, top, left, image < batch, HC, WC, F, FP)
        return
    y0, y1, y2, y3 = wide_products(
        x + server * batch * (H * W * C), weight + server * (9 * F * C),
        image, top, left, image < real, H, W, C, F, PADDING, CP, FP, BLOCK, PRECISION,
    )  # fmt: skip
    store_windows(y, y0, y1, y2, y3, image, top, left, image < batch, HC, WC, F, FP)
    if MOMENTS:
        at = server * tiles + tile
        store_moments(pixels, means, squared, at, y0, y1, y2, y3, top, left, image < real, HC, WC, F, FP)


@jit
def load_window(y, at, live, top, left, HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, POSITION: tl.constexpr):
    """One position of each window of a stored convolution; `at` are offsets of position 0."""
    there = present(live, top, left, HC, WC, POSITION)
    filters = (tl.arange(0, at.shape[1]) < F)[None, :]
    return tl.load(y + at + (POSITION // 2 * WC + POSITION % 2) * F, mask=there[:, None] & filters, other=0.0)


@jit
def pool_forward(
    y, counts, mean, variance, scale, shift, pooled, which, batch, epsilon,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All that follows a stored convolution."""
    tiles = tl.cdiv(batch * ((HC // 2) * (WC // 2)), BLOCK)
    tile = tl.program_id(0) % tiles
    server = (tl.program_id(0) // tiles).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    image, top, left = locate(tile, HC // 2, WC // 2, BLOCK)
    live = image < real
    y += server * batch * (HC * WC * F)
    at = pixel(image, top, left, HC, WC, F, FP)
    y0, y1 = load_window(y, at, live, top, left, HC, WC, F, 0), load_window(y, at, live, top, left, HC, WC, F, 1)
    y2, y3 = load_window(y, at, live, top, left, HC, WC, F, 2), load_window(y, at, live, top, left, HC, WC, F, 3)
    gain = load_channel(scale, server, F, FP) / tl.sqrt(load_channel(variance, server, F, FP) + epsilon)
    base = server * batch * ((HC // 2) * (WC // 2) * F)
    store_pooled(
        pooled + base, which + base, y0, y1, y2, y3, load_channel(mean, server, F, FP), gain,
        load_channel(shift, server, F, FP), image, top, left, real, batch, HC, WC, F, FP,
    )  # fmt: skip


@jit
def pool_sums(
    y, gradient, which, counts, mean, variance, sums, batch, epsilon,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Gradients of shift and scale, [2, F] for each part of a server's windows."""
    WINDOWS: tl.constexpr = (HC // 2) * (WC // 2)
    parts = tl.cdiv(batch * WINDOWS, BLOCK * PART)
    part = tl.program_id(0) % parts
    server = (tl.program_id(0) // parts).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    y += server * batch * (HC * WC * F)
    gradient += server * batch * (WINDOWS * F)
    which += server * batch * (WINDOWS * F)
    centre = load_channel(mean, server, F, FP)[None, :]
    to_shift = tl.zeros((FP,), tl.float32)
    to_scale = tl.zeros((FP,), tl.float32)
    for tile in range(part * PART, tl.minimum((part + 1) * PART, tl.cdiv(real * WINDOWS, BLOCK))):
        image, top, left = locate(tile, HC // 2, WC // 2, BLOCK)
        passed, position = load_gradient(gradient, which, image, top, left, image < real, HC, WC, F, FP)
        at = pixel(image, top, left, HC, WC, F, FP) + (position // 2 * WC + position % 2) * F
        largest = tl.load(y + at, mask=position < 4, other=0.0)
        to_shift += tl.sum(passed, axis=0)
        to_scale += tl.sum(passed * (largest - centre), axis=0)
    to_scale = to_scale / tl.sqrt(load_channel(variance, server, F, FP) + epsilon)
    f = tl.arange(0, FP)
    at = sums + (server * parts + part) * (2 * F) + f
    tl.store(at, to_shift, mask=f < F)
    tl.store(at + F, to_scale, mask=f < F)


@jit
def pool_backward(
    y, gradient, which, counts, mean, variance, scale, sums, to_y, batch, epsilon,
    HC: tl.constexpr, WC: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the convolution's output, of real images only; `sums` [S, 2, F] are those of all parts."""
    WINDOWS: tl.constexpr = ((HC + 1) // 2) * ((WC + 1) // 2)
    tiles = tl.cdiv(batch * WINDOWS, BLOCK)
    tile = tl.program_id(0) % tiles
    server = (tl.program_id(0) // tiles).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    if tile * BLOCK >= real * WINDOWS:
        return
    image, top, left = locate(tile, (HC + 1) // 2, (WC + 1) // 2, BLOCK)
    live = image < real
    y += server * batch * (HC * WC * F)
    to_y += server * batch * (HC * WC * F)
    gradient += server * batch * ((HC // 2) * (WC // 2) * F)
    which += server * batch * ((HC // 2) * (WC // 2) * F)
    passed, position = load_gradient(gradient, which, image, top, left, live, HC, WC, F, FP)
    pixels = real.to(tl.float32) * (HC * WC)
    steep = 1.0 / tl.sqrt(load_channel(variance, server, F, FP) + epsilon)
    gain = (load_channel(scale, server, F, FP) * steep)[None, :]
    lift = (load_channel(sums, 2 * server, F, FP) / pixels)[None, :]
    tilt = (load_channel(sums, 2 * server + 1, F, FP) / pixels * steep)[None, :]
    centre = load_channel(mean, server, F, FP)[None, :]
    at = pixel(image, top, left, HC, WC, F, FP)
    y0, y1 = load_window(y, at, live, top, left, HC, WC, F, 0), load_window(y, at, live, top, left, HC, WC, F, 1)
    y2, y3 = load_window(y, at, live, top, left, HC, WC, F, 2), load_window(y, at, live, top, left, HC, WC, F, 3)
    d0 = gain * (tl.where(position == 0, passed, 0.0) - lift - (y0 - centre) * tilt)
    d1 = gain * (tl.where(position == 1, passed, 0.0) - lift - (y1 - centre) * tilt)
    d2 = gain * (tl.where(position == 2, passed, 0.0) - lift - (y2 - centre) * tilt)
    d3 = gain * (tl.where(position == 3, passed, 0.0) - lift - (y3 - centre) * tilt)
    store_windows(to_y, d0, d1, d2, d3, image, top, left, live, HC, WC, F, FP)


@jit
def wide_weights(
    x, to_y, counts, products, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr,
    RP: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the weights, [3, 3 C, F] for each part of a server's pixels; a program takes one row of taps.

    In memory such a row is 3 C numbers next to each other, RP of them rounded up.
    """
    HC: tl.constexpr = H + 2 * PADDING - 2
    WC: tl.constexpr = W + 2 * PADDING - 2
    parts = tl.cdiv(batch * (HC * WC), BLOCK * PART)
    tap = tl.program_id(0) % 3  # neighbours share what they read
    part = tl.program_id(0) // 3 % parts
    server = (tl.program_id(0) // 3 // parts).to(tl.int64)
    end = tl.load(counts + server).to(tl.int32) * (HC * WC)
    x += server * batch * (H * W * C)
    to_y += server * batch * (HC * WC * F)
    j, f = tl.arange(0, RP)[None, :], tl.arange(0, FP)[None, :]
    total = tl.zeros((RP, FP), tl.float32)
    for start in range(part * (PART * BLOCK), tl.minimum((part + 1) * (PART * BLOCK), end), BLOCK):
        number = start + tl.arange(0, BLOCK)
        back = tl.load(to_y + number[:, None] * F + f, mask=(number < end)[:, None] & (f < F), other=0.0)
        image, column = number // (HC * WC), number % WC - PADDING  # WC divides an image's pixels
        row = number % (HC * WC) // WC - PADDING + tap
        inside = ((number < end) & (row >= 0) & (row < H))[:, None] & (j < 3 * C)
        across = (column[:, None] + j // C >= 0) & (column[:, None] + j // C < W)
        at = ((image * H + row) * W + column)[:, None] * C + j
        patches = tl.load(x + at, mask=inside & across, other=0.0)
        total = tl.dot(tl.trans(patches), back, total, input_precision=PRECISION)
    j = tl.arange(0, RP)[:, None]
    at = products + ((server * parts + part) * 3 + tap) * (3 * C * F) + j * F + f
    tl.store(at, total, mask=(j < 3 * C) & (f < F))


@jit
def wide_infer(
    x, weight, bias, features, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr, SHARED: tl.constexpr,
    CP: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A stage in evaluation mode: convolution, bias, the largest of each window, ReLU."""
    DOWN: tl.constexpr = (H + 2 * PADDING - 2) // 2
    ACROSS: tl.constexpr = (W + 2 * PADDING - 2) // 2
    tiles = tl.cdiv(batch * (DOWN * ACROSS), BLOCK)
    tile = tl.program_id(0) % tiles
    server = (tl.program_id(0) // tiles).to(tl.int64)
    if not SHARED:
        x += server * batch * (H * W * C)
    weight += server * (9 * F * C)
    image, top, left = locate(tile, DOWN, ACROSS, BLOCK)
    y0, y1, y2, y3 = wide_products(
        x, weight, image, top, left, image < batch, H, W, C, F, PADDING, CP, FP, BLOCK, PRECISION
    )
    best = tl.maximum(tl.maximum(y0, y1), tl.maximum(y2, y3)) + load_channel(bias, server, F, FP)[None, :]
    best = tl.where(best <= 0.0, 0.0, best).to(features.dtype.element_ty)
    f = tl.arange(0, FP)[None, :]
    at = features + server * batch * (DOWN * ACROSS * F)
    offset = (tile * BLOCK + tl.arange(0, BLOCK))[:, None] * F + f
    tl.store(at + offset, best, mask=(image < batch)[:, None] & (f < F))
