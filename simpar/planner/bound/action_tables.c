/* Sweeps of action tables: the compiled twin of loops in `action_tables.py`, to the last bit. */

#include <stdint.h>
#include <stdlib.h>

typedef int64_t i64; /* actions, or -1 for none */

static double larger(double one, double other) { return one > other ? one : other; }

/* When every action ends and its message arrives, by action and row (`rows` of them in each column of numbers).
 *
 * Columns over actions are those of `ActionColumns`. `finish` and `arrival` have a last row of zeros for actions that
 * wait for none. `floors` has `stages` numbers a row, or there are no stages; `least` has `held` actions: all or none. */
void sweep(i64 actions, i64 rows, i64 stages, i64 held, i64 all_sent, const i64 *order, const i64 *before, const i64 *source,
           const i64 *other, const i64 *queue, const i64 *column, const i64 *message, const i64 *opened,
           const double *durations, const double *messages, const double *floors, const double *least, double *finish,
           double *arrival) {
    for (i64 i = 0; i < actions; i++) {
        const i64 at = order[i], none = actions;
        const double *on_rank = &finish[(before[at] < 0 ? none : before[at]) * rows];
        const double *input = &arrival[(source[at] < 0 ? none : source[at]) * rows];
        const double *second = &arrival[(other[at] < 0 ? none : other[at]) * rows];
        const double *ahead = &arrival[(queue[at] < 0 ? none : queue[at]) * rows];
        const double *takes = &durations[column[at] * rows], *sends = &messages[message[at] * rows];
        double *ends = &finish[at * rows], *arrives = &arrival[at * rows];
        for (i64 row = 0; row < rows; row++) {
            double end = larger(larger(on_rank[row], input[row]), second[row]) + takes[row];
            if (stages > 0 && opened[at] >= 0) end = larger(end, floors[row * stages + opened[at]]);
            if (held > 0) end = larger(end, least[at * rows + row]);
            ends[row] = end;
            arrives[row] = (all_sent || sends[row] > 0 ? larger(end, ahead[row]) : end) + sends[row];
        }
    }
}

/* The length of the longest chain of actions that ends with each action; fills `depth`, which begins as zeros.
 *
 * The actions of a rank stop before its entry of `ends`. Ranks are visited back and forth, each running as far as its
 * inputs allow. Returns 0 where memory is short or actions wait for each other. */
int find_depths(i64 ranks, const i64 *ends, const i64 *source, const i64 *other, i64 *depth) {
    i64 *position = malloc((size_t)(ranks + 1) * sizeof *position), *chain = calloc((size_t)ranks + 1, sizeof *chain);
    i64 left = ranks > 0 ? ends[ranks - 1] : 0, before = left + 1;
    if (position && chain) {
        for (i64 rank = 0; rank < ranks; rank++) position[rank] = rank > 0 ? ends[rank - 1] : 0;
        while (left > 0 && left < before) {
            before = left;
            for (i64 turn = 0; turn < 2 * ranks; turn++) {
                const i64 rank = turn < ranks ? turn : 2 * ranks - 1 - turn;
                for (i64 at = position[rank]; at < ends[rank]; at++) {
                    const i64 one = source[at], two = other[at];
                    if ((one >= 0 && depth[one] == 0) || (two >= 0 && depth[two] == 0)) break;
                    i64 deepest = chain[rank];
                    if (one >= 0 && depth[one] > deepest) deepest = depth[one];
                    if (two >= 0 && depth[two] > deepest) deepest = depth[two];
                    chain[rank] = depth[at] = deepest + 1;
                    position[rank] = at + 1;
                    left--;
                }
            }
        }
    }
    const int result = position && chain && left == 0;
    free(position);
    free(chain);
    return result;
}
