"""Quantised caches: rounding, packing and scales."""

import numpy as np
from kernel import FLOAT8, Kernel
from registry import mutant


@mutant(Kernel.round)
def quantised_by_truncation(kernel, scaled):
    """Quantised numbers are truncated towards zero, not rounded."""
    return np.trunc(scaled)


@mutant(Kernel.round)
def quantised_downwards(kernel, scaled):
    """Quantised numbers are rounded down."""
    return np.floor(scaled)


@mutant(Kernel.round)
def quantised_ties_away_from_zero(kernel, scaled):
    """Ties are rounded away from zero, not to the even neighbour."""
    return np.trunc(scaled + np.copysign(np.float32(0.5), scaled))


@mutant(Kernel.clamp)
def quantised_clamp_symmetric(kernel, whole, low, high):
    """The lowest number of the type is never used."""
    return np.clip(whole, -high, high)


@mutant(Kernel.clamp)
def quantised_wraps_around(kernel, whole, low, high):
    """Numbers beyond the type's range wrap around."""
    return (whole - low) % (high - low + 1) + low


@mutant()
class nibbles_swapped(Kernel):
    """The first of two numbers of 4 bits is in the high half of the byte."""

    def pack(self, whole):
        packed = Kernel.pack(self, whole)
        return packed << 4 | packed >> 4

    def unpack_digits(self, packed):
        return Kernel.unpack_digits(self, packed << 4 | packed >> 4)


@mutant()
class nibbles_by_halves_of_the_head(Kernel):
    """A byte of 4-bit numbers holds elements i and i + head_size / 2, not two neighbours."""

    def pack(self, whole):
        digits = (whole + 8).astype(np.uint8)
        half = digits.shape[-1] // 2
        return digits[..., :half] | digits[..., half:] << 4

    def unpack_digits(self, packed):
        return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8


@mutant(Kernel.zero_point)
def nibbles_offset_by_seven(kernel):
    """4-bit numbers are stored with an offset of 7."""
    return 7


@mutant()
class nibbles_in_twos_complement(Kernel):
    """4-bit numbers are stored in two's complement, without an offset."""

    def pack(self, whole):
        digits = whole.astype(np.int8).view(np.uint8) & 15
        return digits[..., 0::2] | digits[..., 1::2] << 4

    def unpack_digits(self, packed):
        return Kernel.unpack_digits(self, packed ^ 0x88)


@mutant(Kernel.scale_of)
def scale_of_keys_for_values(kernel, call, side):
    """k_scale is used for values too."""
    return Kernel.scale_of(kernel, call, "key" if call.has("k_scale") else side)


@mutant(Kernel.scale_of)
def scale_of_values_for_keys(kernel, call, side):
    """v_scale is used for keys too."""
    return Kernel.scale_of(kernel, call, "value" if call.has("v_scale") else side)


@mutant(Kernel.scale_of)
def channels_read_as_one(kernel, call, side):
    """The first of several scales per channel is used for the whole tensor."""
    scale = Kernel.scale_of(kernel, call, side)
    return scale[:, :, :1, :1]


@mutant(Kernel.scale_of)
def channels_of_the_first_head(kernel, call, side):
    """Every head has the scales of the first head's channels."""
    return Kernel.scale_of(kernel, call, side)[:, :, :1]


@mutant(Kernel.scale_of)
def channels_by_head(kernel, call, side):
    """All channels of a head use the scale of its first channel."""
    return Kernel.scale_of(kernel, call, side)[:, :, :, :1]


@mutant(Kernel.scale_of)
def channels_laid_out_by_channel(kernel, call, side):
    """Scales per channel are read as [head_size, kv_num_heads]."""
    scale = Kernel.scale_of(kernel, call, side)
    if scale.size == 1:
        return scale
    return scale.reshape(1, 1, call.size, call.kv_heads).swapaxes(2, 3)


@mutant()
class new_tokens_not_quantised(Kernel):
    """Attention uses the exact new tokens, not the quantised ones."""

    def join(self, call, side, new):
        read, present = Kernel.join(self, call, side, new)
        if self.quantised(call, side) and not call.first_prompt:
            for b, rows in enumerate(read):
                count = self.new_length(call, b)
                rows[:, rows.shape[1] - count :] = new[b, :count].astype(np.float32).swapaxes(0, 1)
        return read, present


@mutant()
class quantised_before_rotary(Kernel):
    """Keys are quantised before they are rotated, and a second time after."""

    def turn_key(self, call, key):
        if self.quantised(call, "key") and key.size:
            stored = self.store(call, "key", key).swapaxes(1, 2)
            loaded = [self.load(call, "key", rows) for rows in stored]
            key = np.stack(loaded).swapaxes(1, 2)
        return Kernel.turn_key(self, call, key)


@mutant()
class cache_not_dequantised(Kernel):
    """Attention reads the numbers of a quantised cache without their scale."""

    def load(self, call, side, rows):
        loaded = Kernel.load(self, call, side, rows)
        if not self.quantised(call, side):
            return loaded
        return loaded / self.scale_of(call, side)[0].swapaxes(0, 1)


@mutant()
class scale_inverted(Kernel):
    """New tokens are multiplied by the scale, not divided."""

    def store(self, call, side, new):
        if self.quantised(call, side):
            new = new.astype(np.float32) * self.scale_of(call, side) ** 2
        return Kernel.store(self, call, side, new)


@mutant(Kernel.to_float8)
def float8_overflows(kernel, scaled):
    """Numbers beyond 448 are not clamped before they become float8."""
    return scaled.astype(FLOAT8)


@mutant(Kernel.to_float8)
def float8_by_truncation(kernel, scaled):
    """Numbers are truncated to float8, not rounded."""
    rounded = Kernel.to_float8(kernel, scaled)
    bits = rounded.view(np.uint8)
    beyond = np.abs(rounded.astype(np.float32)) > np.abs(scaled)
    return np.where(beyond, bits - 1, bits).astype(np.uint8).view(FLOAT8)
