/* What every op waited for last, and sums along such chains: the compiled twin of the numpy code in `chains.py`. */

#include <stdint.h>
#include <stdlib.h>

typedef int32_t i32; /* ops; -1 for none */
typedef int64_t i64;

/* For every op the predecessor that finishes last: dependencies (rows of `depend`) win over streams (rows of `stream`),
 * and the first of either over the others. */
void bind(i64 ops, const i64 *depends, const i32 *depend, i64 streams, const i64 *begins, const i32 *stream,
          const i64 *finish_ns, i32 *binding) {
    for (i64 op = 0; op < ops; op++) binding[op] = -1;
    for (i64 one = 0; one < streams; one++)
        for (i64 i = begins[one] + 1; i < begins[one + 1]; i++) {
            i32 *best = &binding[stream[i]];
            if (*best < 0 || finish_ns[stream[i - 1]] > finish_ns[*best]) *best = stream[i - 1];
        }
    for (i64 op = 0; op < ops; op++) {
        i32 best = -1;
        for (i64 i = depends[op]; i < depends[op + 1]; i++)
            if (best < 0 || finish_ns[depend[i]] > finish_ns[best]) best = depend[i];
        if (best >= 0 && (binding[op] < 0 || finish_ns[best] >= finish_ns[binding[op]])) binding[op] = best;
    }
}

/* The chain that leads to an op, which comes last, at the end of `chain` [ops]; returns its length. */
i64 follow_chain(i64 ops, const i32 *binding, i64 op, i64 *chain) {
    i64 length = 0;
    for (i64 at = op; at >= 0; at = binding[at]) chain[ops - ++length] = at;
    return length;
}

/* Sums of `value` over every op and the chain of its binding predecessors; returns 0 where memory is short. */
int sum_along(i64 ops, const i32 *binding, const double *value, double *total) {
    i32 *chain = malloc((size_t)(ops + 1) * sizeof *chain);
    unsigned char *known = calloc((size_t)ops + 1, 1);
    if (chain && known)
        for (i64 op = 0; op < ops; op++) {
            i64 length = 0;
            i32 at = (i32)op;
            for (; at >= 0 && !known[at]; at = binding[at]) {
                known[at] = 1; /* an op waits for no op that waits for it */
                chain[length++] = at;
            }
            double sum = at >= 0 ? total[at] : 0.0;
            while (length > 0) {
                sum += value[chain[--length]];
                total[chain[length]] = sum;
            }
        }
    const int result = chain && known;
    free(chain);
    free(known);
    return result;
}
