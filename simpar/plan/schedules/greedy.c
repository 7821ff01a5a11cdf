/* Greedy list scheduling: the compiled twin of the loops in `greedy.py`, whose `GreedyPipeline` says what columns hold.
 * Both take the same steps in the same order, so that times are the same to the last bit. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef int64_t i64;

enum { NONE = -1 };

typedef struct {
    i64 num_stages, num_ranks, m, cap, is_ordered;
    const i64 *rank_of_stage, *stages, *first, *order;
    double *ready_at;
    i64 *done, *actions, *in_flight, *written, *paid, *taken, *early;
} Pipeline;

typedef struct { double time; i64 rank; } Event;

static int is_before(Event one, Event other) {
    return one.time < other.time || (one.time == other.time && one.rank < other.rank);
}

static void push(Event *heap, i64 *size, Event event) {
    i64 at = (*size)++;
    for (; at > 0 && is_before(event, heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = event;
}

static Event pop(Event *heap, i64 *size) {
    const Event top = heap[0], moved = heap[--*size];
    i64 at = 0;
    for (i64 child; (child = 2 * at + 1) < *size; at = child) {
        if (child + 1 < *size && is_before(heap[child + 1], heap[child])) child++;
        if (!is_before(heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
    return top;
}

/* The F or I whose input an action produces, or NONE. */
static i64 target_of(i64 action, i64 num) {
    if (action < num) return action + 1 < num ? action + 1 : 2 * num - 1;
    return num < action && action < 2 * num ? action - 1 : NONE;
}

static double input_of(const Pipeline *state, i64 action) {
    return state->ready_at[action * (state->m + 1) + state->done[action]];
}

/* The F or I (`kind` 0 or 1) that can start now, or NONE; of several, the one of the last stage. */
static i64 find_ready(const Pipeline *state, i64 kind, i64 rank, double now) {
    for (i64 at = state->first[rank]; at < state->first[rank + 1]; at++) {
        const i64 action = kind * state->num_stages + state->stages[at];
        if (input_of(state, action) <= now) return action;
    }
    return NONE;
}

/* The time at which the next input that is on its way arrives; infinite without any. */
static double next_arrival(const Pipeline *state, i64 rank, double now) {
    double earliest = INFINITY;
    for (i64 at = state->first[rank]; at < state->first[rank + 1]; at++)
        for (i64 kind = 0; kind < 2; kind++) {
            const double arrival = input_of(state, kind * state->num_stages + state->stages[at]);
            if (now < arrival && arrival < earliest) earliest = arrival;
        }
    return earliest;
}

/* F and I in turn: an I after an F, an F after anything else, as far as they can start; else NONE. */
static i64 choose_in_turn(const Pipeline *state, i64 rank, double now) {
    const i64 gradient = find_ready(state, 1, rank, now), written = state->written[rank];
    const int after_forward =
        written > 3 * state->m * state->first[rank] && state->actions[written - 1] < state->num_stages;
    if (state->in_flight[rank] >= state->cap || (gradient != NONE && after_forward)) return gradient;
    const i64 forward = find_ready(state, 0, rank, now);
    return forward == NONE ? gradient : forward;
}

/* The next pass of the rule's order; while that cannot start, an I out of turn; else NONE. */
static i64 choose_in_order(const Pipeline *state, i64 rank, double now) {
    const i64 num = state->num_stages, end = 2 * state->m * state->first[rank + 1];
    i64 wanted = NONE;
    for (; state->taken[rank] < end; state->taken[rank]++) {
        wanted = state->order[state->taken[rank]];
        if (wanted < num || state->early[wanted - num] == 0) break;
        state->early[wanted - num]--;
    }
    if (state->taken[rank] == end) return NONE;
    if (input_of(state, wanted) <= now && (wanted >= num || state->in_flight[rank] < state->cap)) {
        state->taken[rank]++;
        return wanted;
    }
    const i64 gradient = find_ready(state, 1, rank, now);
    if (gradient != NONE) state->early[gradient - num]++;
    return gradient;
}

/* The action that a rank starts now: an F or I by the rule, else the W that it has owed longest, else NONE. */
static i64 choose(const Pipeline *state, i64 rank, double now) {
    const i64 num = state->num_stages;
    const i64 chosen = state->is_ordered ? choose_in_order(state, rank, now) : choose_in_turn(state, rank, now);
    if (chosen != NONE) return chosen;
    for (; state->paid[rank] < state->written[rank]; state->paid[rank]++) {
        const i64 action = state->actions[state->paid[rank]];
        if (num <= action && action < 2 * num) return action + num;
    }
    return NONE;
}

/* Run an idle pipeline until no rank has anything left to do, or the first stage has begun `most` forwards; returns the
 * time at which it ends, or -1 where memory is short. */
double run(const Pipeline *state, const double *seconds, i64 most) {
    const i64 num = state->num_stages;
    Event *heap = malloc((size_t)(2 * state->num_ranks + 2) * sizeof *heap); /* a rank: awake once, and one finish */
    char *asleep = malloc((size_t)state->num_ranks + 1);
    double now = 0.0;
    i64 size = 0;
    if (!heap || !asleep) {
        now = -1.0;
    } else {
        for (i64 rank = 0; rank < state->num_ranks; rank++) asleep[rank] = rank != state->rank_of_stage[0];
        push(heap, &size, (Event){0.0, state->rank_of_stage[0]});
    }
    while (size > 0 && state->done[0] < most) {
        const Event event = pop(heap, &size);
        const i64 rank = event.rank, action = choose(state, rank, now = event.time);
        if (action == NONE) {
            const double wake = next_arrival(state, rank, now);
            if (wake < INFINITY) push(heap, &size, (Event){wake, rank});
            else asleep[rank] = 1;
            continue;
        }
        const i64 kind = action / num, target = target_of(action, num);
        const double finish = now + seconds[kind];
        if (kind == 0) state->in_flight[rank]++;
        if (kind == 2) {
            state->in_flight[rank]--;
            state->paid[rank]++;
        }
        state->actions[state->written[rank]++] = action;
        push(heap, &size, (Event){finish, rank});
        if (target != NONE) {
            const i64 receiver = state->rank_of_stage[target % num];
            state->ready_at[target * (state->m + 1) + state->done[action]] = finish;
            if (asleep[receiver]) {
                asleep[receiver] = 0;
                push(heap, &size, (Event){finish, receiver});
            }
        }
        state->done[action]++;
    }
    free(heap);
    free(asleep);
    return now;
}

/* The time at which the order of an idle pipeline (a whole table) ends if every action starts when it can; -1 where
 * memory is short. */
double find_makespan(const Pipeline *state, const double *seconds) {
    const i64 num = state->num_stages, messages = 2 * num * (state->m + 1);
    i64 *sleeper = malloc((size_t)messages * sizeof *sleeper);
    i64 *awake = malloc((size_t)state->num_ranks * sizeof *awake);
    double *clock = calloc((size_t)state->num_ranks, sizeof *clock), result = -1.0;
    if (sleeper && awake && clock) {
        i64 left = 0;
        for (i64 at = 0; at < messages; at++) sleeper[at] = NONE;
        for (i64 rank = 0; rank < state->num_ranks; rank++) awake[left++] = rank;
        while (left > 0) {
            const i64 rank = awake[--left];
            double now = clock[rank];
            i64 at = state->written[rank];
            for (; at < 3 * state->m * state->first[rank + 1]; at++) {
                const i64 action = state->order[at], target = target_of(action, num);
                if (action < 2 * num) {
                    const i64 message = action * (state->m + 1) + state->done[action];
                    if (state->ready_at[message] == INFINITY) {
                        sleeper[message] = rank;
                        break;
                    }
                    if (state->ready_at[message] > now) now = state->ready_at[message];
                }
                now += seconds[action / num];
                if (target != NONE) {
                    const i64 message = target * (state->m + 1) + state->done[action];
                    state->ready_at[message] = now;
                    if (sleeper[message] != NONE) awake[left++] = sleeper[message];
                }
                state->done[action]++;
            }
            state->written[rank] = at;
            clock[rank] = now;
        }
        for (i64 rank = 0; rank < state->num_ranks; rank++)
            if (clock[rank] > result) result = clock[rank];
    }
    free(sleeper);
    free(awake);
    free(clock);
    return result;
}
