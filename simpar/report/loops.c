/* Loops over the slots, ops and gaps of a step: the compiled twin of the numpy code in `loops.py`, to the last bit. */

#include <math.h>
#include <stdint.h>

typedef int32_t i32; /* nodes, ops; -1 for none */
typedef int64_t i64;

/* How many slots every node has, and their time; both begin as zeros. */
void tally(i64 slots, const i32 *node, const i64 *duration_ns, i64 *count, i64 *total_ns) {
    for (i64 slot = 0; slot < slots; slot++) {
        count[node[slot]]++;
        total_ns[node[slot]] += duration_ns[slot];
    }
}

/* more + (duration - less) * factor of every slot in whole ticks, with three numbers for every node. */
void weigh(i64 slots, const i32 *node, const i64 *duration_ns, const double *less, const double *factor,
           const double *more, double ticks, double *result) {
    for (i64 slot = 0; slot < slots; slot++) {
        const i32 at = node[slot];
        result[slot] = rint((more[at] + ((double)duration_ns[slot] - less[at]) * factor[at]) * ticks) / ticks;
    }
}

/* Gaps cut by the ops of the chains that lead back from their ends; without room for the pieces, only their number. */
i64 follow_gaps(i64 gaps, const i64 *begin, const i64 *end, const i64 *behind, const i64 *start_ns, const i32 *binding,
                i64 *gap, i64 *from, i64 *until, i64 *op) {
    i64 pieces = 0;
    for (i64 one = 0; one < gaps; one++) {
        i64 left = end[one];
        for (i64 at = behind[one]; at >= 0; at = binding[at]) {
            const i64 start = start_ns[at], first = start > begin[one] ? start : begin[one];
            if (left > first) {
                if (gap) {
                    gap[pieces] = one;
                    from[pieces] = first;
                    until[pieces] = left;
                    op[pieces] = at;
                }
                pieces++;
            }
            if (start <= begin[one]) break;
            left = start;
        }
    }
    return pieces;
}

/* The waiting of gaps, in time order, by cause: what the surplus of a cause asks for beyond what it was given before. */
void split_waiting(i64 gaps, i64 causes, const i64 *wait_ns, const double *surplus, i64 *given, i64 *share) {
    for (i64 gap = 0; gap < gaps; gap++) {
        int some = 0;
        for (i64 cause = 0; cause < causes; cause++) some |= surplus[gap * causes + cause] >= 1.0;
        i64 left = some ? wait_ns[gap] : 0;
        for (i64 cause = 0; cause < causes; cause++) {
            const i64 more = (i64)rint(surplus[gap * causes + cause]) - given[cause];
            const i64 part = left <= 0 || more <= 0 ? 0 : more < left ? more : left;
            share[gap * causes + cause] = part;
            given[cause] += part;
            left -= part;
        }
    }
}

/* Unions of intervals that are visited in `order`, by ascending start; returns how many there are. */
i64 unite(i64 count, const i64 *order, const i64 *start, const i64 *finish, i64 *first, i64 *last) {
    i64 unions = 0;
    for (i64 i = 0; i < count; i++) {
        const i64 begin = start[order[i]], end = finish[order[i]];
        if (unions && begin <= last[unions - 1]) {
            if (end > last[unions - 1]) last[unions - 1] = end;
        } else {
            first[unions] = begin;
            last[unions++] = end;
        }
    }
    return unions;
}
