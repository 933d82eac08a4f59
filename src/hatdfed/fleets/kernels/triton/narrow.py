"""GPU kernels of stages with few input channels; see `triton_parts` for how they cut the work and for the names."""

# mypy: ignore-errors
# ruff: noqa: N803, N806
# (mypy: this is Triton's language, not Python's. ruff: capitals are compile-time constants, as everywhere in Triton.)

from hatdfed.fleets.kernels.triton.parts import (
    jit,
    load_channel,
    load_gradient,
    load_patches,
    locate,
    narrow_products,
    present,
    store_moments,
    store_pooled,
    tl,
)


@jit
def narrow_statistics(
    x, weight, counts, pixels, means, squared, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr,
    K: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The convolution's moments, tile by tile; the convolution itself is not kept."""
    HC: tl.constexpr = H + 2 * PADDING - 2
    WC: tl.constexpr = W + 2 * PADDING - 2
    WINDOWS: tl.constexpr = ((HC + 1) // 2) * ((WC + 1) // 2)
    tiles = tl.cdiv(batch * WINDOWS, BLOCK)
    tile = tl.program_id(0) % tiles
    server = (tl.program_id(0) // tiles).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    if tile * BLOCK >= real * WINDOWS:
        return
    image, top, left = locate(tile, (HC + 1) // 2, (WC + 1) // 2, BLOCK)
    live = image < real
    patches = load_patches(x + server * batch * (H * W * C), image, top, left, live, 0, H, W, C, PADDING, K)
    y0, y1, y2, y3 = narrow_products(patches, weight + server * (64 * C * F), C, F, K, FP, PRECISION)
    at = server * tiles + tile
    store_moments(pixels, means, squared, at, y0, y1, y2, y3, top, left, live, HC, WC, F, FP)


@jit
def narrow_forward(
    x, weight, counts, mean, variance, scale, shift, pooled, which, batch, epsilon,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr,
    K: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The convolution once more, and all that follows it."""
    HC: tl.constexpr = H + 2 * PADDING - 2
    WC: tl.constexpr = W + 2 * PADDING - 2
    tiles = tl.cdiv(batch * ((HC // 2) * (WC // 2)), BLOCK)
    tile = tl.program_id(0) % tiles
    server = (tl.program_id(0) // tiles).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    image, top, left = locate(tile, HC // 2, WC // 2, BLOCK)
    patches = load_patches(x + server * batch * (H * W * C), image, top, left, image < real, 0, H, W, C, PADDING, K)
    y0, y1, y2, y3 = narrow_products(patches, weight + server * (64 * C * F), C, F, K, FP, PRECISION)
    gain = load_channel(scale, server, F, FP) / tl.sqrt(load_channel(variance, server, F, FP) + epsilon)
    base = server * batch * ((HC // 2) * (WC // 2) * F)
    store_pooled(
        pooled + base, which + base, y0, y1, y2, y3, load_channel(mean, server, F, FP), gain,
        load_channel(shift, server, F, FP), image, top, left, real, batch, HC, WC, F, FP,
    )  # fmt: skip


@jit
def narrow_gradients(
    x, gradient, which, counts, products, sums, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr,
    K: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Patches times what comes back, [4, 16 C, F] for each part of a server's windows, and the latter's sum.

    A program takes K of the 16 C rows: with 64 of them products would go to instructions that want them transposed.
    """
    HC: tl.constexpr = H + 2 * PADDING - 2
    WC: tl.constexpr = W + 2 * PADDING - 2
    WINDOWS: tl.constexpr = (HC // 2) * (WC // 2)
    CUTS: tl.constexpr = (16 * C + K - 1) // K
    parts = tl.cdiv(batch * WINDOWS, BLOCK * PART)
    first = tl.program_id(0) % CUTS * K
    part = tl.program_id(0) // CUTS % parts
    server = (tl.program_id(0) // CUTS // parts).to(tl.int64)
    real = tl.load(counts + server).to(tl.int32)
    x += server * batch * (H * W * C)
    gradient += server * batch * (WINDOWS * F)
    which += server * batch * (WINDOWS * F)
    a0 = tl.zeros((K, FP), tl.float32)
    a1 = tl.zeros((K, FP), tl.float32)
    a2 = tl.zeros((K, FP), tl.float32)
    a3 = tl.zeros((K, FP), tl.float32)
    total = tl.zeros((FP,), tl.float32)
    for tile in range(part * PART, tl.minimum((part + 1) * PART, tl.cdiv(real * WINDOWS, BLOCK))):
        image, top, left = locate(tile, HC // 2, WC // 2, BLOCK)
        live = image < real
        rows = tl.trans(load_patches(x, image, top, left, live, first, H, W, C, PADDING, K))
        passed, position = load_gradient(gradient, which, image, top, left, live, HC, WC, F, FP)
        total += tl.sum(passed, axis=0)
        a0 = tl.dot(rows, tl.where(position == 0, passed, 0.0), a0, input_precision=PRECISION)
        a1 = tl.dot(rows, tl.where(position == 1, passed, 0.0), a1, input_precision=PRECISION)
        a2 = tl.dot(rows, tl.where(position == 2, passed, 0.0), a2, input_precision=PRECISION)
        a3 = tl.dot(rows, tl.where(position == 3, passed, 0.0), a3, input_precision=PRECISION)
    k, f = first + tl.arange(0, K)[:, None], tl.arange(0, FP)[None, :]
    inside = (k < 16 * C) & (f < F)
    at = products + (server * parts + part) * (64 * C * F) + k * F + f
    tl.store(at, a0, mask=inside)
    tl.store(at + 16 * C * F, a1, mask=inside)
    tl.store(at + 32 * C * F, a2, mask=inside)
    tl.store(at + 48 * C * F, a3, mask=inside)
    f = tl.arange(0, FP)
    tl.store(sums + (server * parts + part) * F + f, total, mask=(f < F) & (first == 0))


@jit
def narrow_gram(
    x, counts, grams, sums, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr, POSITIONS: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Patches times patches, K rows a program, and their sum, over all windows in which a position exists.

    On even sizes all four positions are the same, and one is enough (POSITIONS 1).
    """
    HC: tl.constexpr = H + 2 * PADDING - 2
    WC: tl.constexpr = W + 2 * PADDING - 2
    WINDOWS: tl.constexpr = ((HC + 1) // 2) * ((WC + 1) // 2)
    CUTS: tl.constexpr = (16 * C + K - 1) // K
    parts = tl.cdiv(batch * WINDOWS, BLOCK * PART)
    first = tl.program_id(0) % CUTS * K
    place = tl.program_id(0) // CUTS  # (server, part, position)
    server = (place // POSITIONS // parts).to(tl.int64)
    part = place // POSITIONS % parts
    real = tl.load(counts + server).to(tl.int32)
    x += server * batch * (H * W * C)
    gram = tl.zeros((K, KP), tl.float32)
    total = tl.zeros((K,), tl.float32)
    for tile in range(part * PART, tl.minimum((part + 1) * PART, tl.cdiv(real * WINDOWS, BLOCK))):
        image, top, left = locate(tile, (HC + 1) // 2, (WC + 1) // 2, BLOCK)
        live = present(image < real, top, left, HC, WC, place % POSITIONS)
        rows = load_patches(x, image, top, left, live, first, H, W, C, PADDING, K)
        columns = load_patches(x, image, top, left, live, 0, H, W, C, PADDING, KP)
        gram = tl.dot(tl.trans(rows), columns, gram, input_precision=PRECISION)
        total += tl.sum(rows, axis=0)
    at = place.to(tl.int64)
    row, column = first + tl.arange(0, K)[:, None], tl.arange(0, KP)[None, :]
    inside = (row < 16 * C) & (column < 16 * C)
    tl.store(grams + at * (256 * C * C) + row * (16 * C) + column, gram, mask=inside)
    k = first + tl.arange(0, K)
    tl.store(sums + at * (16 * C) + k, total, mask=k < 16 * C)


@jit
def narrow_infer(
    x, weight, bias, features, servers, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, PADDING: tl.constexpr, GROUP: tl.constexpr,
    SHARED: tl.constexpr, K: tl.constexpr, FP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A stage in evaluation mode; where images are shared, a group of servers shares the loaded patches as well."""
    DOWN: tl.constexpr = (H + 2 * PADDING - 2) // 2
    ACROSS: tl.constexpr = (W + 2 * PADDING - 2) // 2
    tiles = tl.cdiv(batch * (DOWN * ACROSS), BLOCK)
    tile = tl.program_id(0) % tiles
    first = tl.program_id(0) // tiles * GROUP
    image, top, left = locate(tile, DOWN, ACROSS, BLOCK)
    if not SHARED:
        x += first.to(tl.int64) * batch * (H * W * C)
    patches = load_patches(x, image, top, left, image < batch, 0, H, W, C, PADDING, K)
    f = tl.arange(0, FP)[None, :]
    offset = (tile * BLOCK + tl.arange(0, BLOCK))[:, None] * F + f
    for number in range(0, tl.minimum(GROUP, servers - first)):
        server = first.to(tl.int64) + number
        y0, y1, y2, y3 = narrow_products(patches, weight + server * (64 * C * F), C, F, K, FP, PRECISION)
        best = tl.maximum(tl.maximum(y0, y1), tl.maximum(y2, y3)) + load_channel(bias, server, F, FP)[None, :]
        best = tl.where(best <= 0.0, 0.0, best).to(features.dtype.element_ty)
        at = features + server * batch * (DOWN * ACROSS * F) + offset
        tl.store(at, best, mask=(image < batch)[:, None] & (f < F))
