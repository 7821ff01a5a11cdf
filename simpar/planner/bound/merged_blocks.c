/* Blocks that run together: the compiled twin of `merge_phases` and `make_segment`, to the last bit. */

#include <math.h>
#include <stdint.h>

typedef int64_t i64;

#define NS_PER_S 1e9
#define WHOLE 4503599627370496.0 /* 2^52: from here on all doubles are whole */

static double larger(double one, double other) { return one > other ? one : other; }
static double smaller(double one, double other) { return one < other ? one : other; }
static i64 later(i64 one, i64 other) { return one > other ? one : other; }

/* Rounded half to even; positive. */
static i64 rounded(double value) { return (i64)(value < WHOLE ? (value + WHOLE) - WHOLE : value); }

/* The steps of a pair of blocks, numbered from those of the forward on; `after` begins at `waits` for each of them.
 * Strands list the steps that keep their order; they begin at `begins`. */
typedef struct {
    i64 steps, by_turns;
    const i64 *waits, *after, *stream, *fills, *moves, *begins, *strand;
    const double *sms;
} Pair;

/* Fills `order` with the steps in the order of their starts. Returns 0 where steps wait for each other. */
static int place_steps(const Pair *pair, const double *took, double *start, double *finish, i64 *order) {
    double idle[STREAMS] = {0.0};
    i64 head[3], turn = -1;
    for (i64 strand = 0; strand < 3; strand++) head[strand] = pair->begins[strand];
    for (i64 at = 0; at < pair->steps; at++) finish[at] = -1.0; /* not placed yet */
    for (i64 count = 0; count < pair->steps; count++) {
        i64 chosen = -1;
        double first = 0.0;
        for (i64 strand = 0; strand < 3; strand++) {
            if (head[strand] == pair->begins[strand + 1]) continue;
            const i64 at = pair->strand[head[strand]];
            double begin = idle[pair->stream[at]];
            int ready = 1;
            for (i64 i = pair->waits[at]; ready && i < pair->waits[at + 1]; i++) {
                ready = finish[pair->after[i]] >= 0.0;
                begin = larger(begin, finish[pair->after[i]]);
            }
            /* of equal starts, that of the strand whose turn it is comes first */
            if (ready && (chosen < 0 || begin < first || (begin == first && strand == turn))) {
                chosen = strand;
                first = begin;
            }
        }
        if (chosen < 0) return 0;
        const i64 at = pair->strand[head[chosen]++];
        start[at] = first;
        finish[at] = idle[pair->stream[at]] = first + took[at];
        i64 place = count;
        for (; place > 0 && start[order[place - 1]] > first; place--) order[place] = order[place - 1];
        order[place] = at;
        if (pair->by_turns && !pair->fills[at]) turn = chosen;
    }
    return 1;
}

/* By how much kernels that take `slowed` times as long lack the multiprocessors that exchanges hold. */
static double without_held(const Pair *pair, const i64 *order, const double *kernels_s, const i64 *prices_ns, i64 keys,
                           double slowed) {
    double most = 0.0, lost = 0.0, compute = 0.0;
    for (i64 i = 0; i < pair->steps; i++) {
        const i64 at = order[i];
        most = larger(most, pair->sms[at]);
        lost += pair->sms[at] * (double)prices_ns[at * keys];
        compute += kernels_s[at * keys] * slowed;
    }
    if (most == 0.0) return 1.0;
    return smaller(1.0 + lost / larger(compute * NS_PER_S, 1.0), most < 1.0 ? 1.0 / (1.0 - most) : INFINITY);
}

/* Nanoseconds of a pair of blocks of many keys, `merged_ns`; kernels_s and prices_ns have a column for each.
 *
 * Kernels take `slow` times as long, and at most `excess` longer beside collectives. `room` has three numbers a step,
 * `order` two. Returns 0 where steps wait for each other. */
int merge_blocks(i64 keys, i64 steps, i64 by_turns, double slow, double excess, const i64 *waits, const i64 *after,
                 const i64 *stream, const i64 *fills, const i64 *moves, const i64 *begins, const i64 *strand,
                 const double *sms, const double *kernels_s, const i64 *prices_ns, const i64 *issue_ns, double *room,
                 i64 *order, i64 *merged_ns) {
    const Pair pair = {steps, by_turns, waits, after, stream, fills, moves, begins, strand, sms};
    double *took = room, *start = room + steps, *finish = room + 2 * steps;
    i64 *end = order + steps;
    for (i64 key = 0; key < keys; key++) {
        const double *mine_s = &kernels_s[key];
        const i64 *mine_ns = &prices_ns[key];
        double kernels = 0.0, hidden = 0.0;
        for (i64 at = 0; at < steps; at++) {
            took[at] = moves[at] ? (double)mine_ns[at * keys] / NS_PER_S : mine_s[at * keys];
            if (stream[at] == COMPUTE) kernels += took[at];
            else if (sms[at] == 0.0) hidden += took[at];
        }
        if (!place_steps(&pair, took, start, finish, order)) return 0;
        double slowed = slow * (1.0 + excess * smaller(1.0, hidden / kernels));
        slowed *= without_held(&pair, order, mine_s, mine_ns, keys, slowed);
        i64 idle[STREAMS] = {0}, last = issue_ns[key];
        for (i64 i = 0; i < steps; i++) {
            const i64 at = order[i];
            i64 begin = idle[stream[at]];
            for (i64 j = waits[at]; j < waits[at + 1]; j++) begin = later(begin, end[after[j]]);
            end[at] = begin + (moves[at] ? mine_ns[at * keys] : rounded(mine_s[at * keys] * slowed * NS_PER_S));
            idle[stream[at]] = end[at];
            last = later(last, end[at]);
        }
        merged_ns[key] = last;
    }
    return 1;
}
