// Soft cap: a score s becomes cap * tanh(s / cap), before it is masked. What is left in the place of a raw score is the
// tanh, and q.scale is the cap in log2 units.

// tanh(x) = 1 - 2 / (1 + e^2x): right to some 2^-22, absolute, with the cap still well below what a weight shows.
// tanh.approx.f32 is right to 2^-11, relative: at a cap of 50 that would be 2.4 % of a weight.
__device__ __forceinline__ void cap_scores(const Queries& q, Scores (&s)[BLOCKS]) {
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& score = s[n][h][b][i];
                    score = fmaf(-2.0f, reciprocal_approx(1.0f + exp2_approx(score * q.cap_scale[2 * b + slot_of(i)])), 1.0f);
                }
}
