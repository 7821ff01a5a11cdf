/* Templates written out over the actions of all classes: the compiled twin of `Emitter.finish` in `emit.py`. */

#include <stdint.h>

typedef int32_t i32; /* classes, actions, nodes, groups, ops, or -1 for none */
typedef int64_t i64;

/* Classes with the same actions, as `_Alike` of `write_ops.py`; "rows" of a template are entry_at[t] to entry_at[t + 1].
 * Output of several columns have them one after the other, `rows` entries each. */
typedef struct {
    i64 actions, sources, classes, dependencies, changes, buffers;
    const i64 *template_of, *microbatch, *stage, *label_at, *start;  /* by action; `start` is its first slot */
    const i64 *source_class, *source_action;                         /* [classes][actions][sources], without classes */
    const i64 *node_at, *fixed_ns, *use, *label;                     /* by node; -1 uses nothing */
    const i64 *flow;                                                 /* [uses][group, ns, bytes, route, cap][classes] */
    const i64 *dependency_at, *dependency, *stream_at, *stream, *change_at, *change, *arrival_at, *arrival;
    const i64 *exit, *buffer;                                        /* by template; [waiting, awaited][buffers] */
    i64 streams;
} Alike;

typedef struct {
    i64 classes, streams, ops, dependencies, placed, changes;        /* the last four are filled in */
    const Alike *alike;
    const i64 *alike_of, *place, *begin;                             /* by class: its Alike, place there, first slot */
    const i64 *is_joint;                                             /* by group: whether several classes are in it */
    i32 *head, *cursor, *visitor;                                    /* by group, filled with -1 */
    i64 *calls, *visitors;                                           /* by group, zeros */
    i32 *next;                                                       /* scratch, by slot */
    i32 *slot_class, *action, *node, *group, *op_of_slot;            /* by slot */
    i32 *class_id, *route, *label, *microbatch, *stage;              /* by op */
    i64 *fixed_ns, *work_bytes, *cap;
    i64 *waits_at, *stream_at;                                       /* zeros: pointers of ragged rows */
    i32 *waits, *placed_op;                                          /* their items */
    i32 *change_op, *change_class;
    uint8_t *at_finish;
    i64 *delta, *category;
} Output;

static const Alike *alike_of(const Output *t, i64 class_id) { return &t->alike[t->alike_of[class_id]]; }

/* The op of a slot that runs a collective of a group of several classes: a new one in the first of these classes, the
 * same one for the calls in its place in the others. */
static i32 joint_op(Output *t, i32 group, i32 class_id, i32 slot) {
    if (t->visitor[group] != class_id) {
        t->visitor[group] = class_id;
        t->cursor[group] = t->visitors[group]++ ? t->head[group] : -1;
    }
    if (t->visitors[group] == 1) {
        if (t->cursor[group] < 0) t->head[group] = slot;
        else t->next[t->cursor[group]] = slot;
        t->cursor[group] = slot;
        t->next[slot] = -1;
        return (i32)t->ops;
    }
    const i32 first = t->cursor[group];
    if (first < 0) return -1;
    t->cursor[group] = t->next[first];
    return t->op_of_slot[first];
}

static i64 place_class(Output *t, i32 class_id) { /* returns as place_ops does */
    const Alike *a = alike_of(t, class_id);
    const i64 place = t->place[class_id], begin = t->begin[class_id];
    i64 *stream_at = &t->stream_at[class_id * t->streams + 1];
    for (i64 action = 0; action < a->actions; action++) {
        const i64 template = a->template_of[action], first = a->node_at[template];
        const i64 nodes = a->node_at[template + 1] - first, from = begin + a->start[action];
        for (i64 i = 0; i < nodes; i++) {
            const i64 slot = from + i, use = a->use[first + i];
            const i64 *flow = use < 0 ? 0 : &a->flow[use * 5 * a->classes + place];
            const i32 group = flow ? (i32)flow[0] : -1;
            i32 op = (i32)t->ops;
            t->slot_class[slot] = class_id;
            t->action[slot] = (i32)action;
            t->node[slot] = (i32)i;
            t->group[slot] = group;
            if (group >= 0 && t->is_joint[group]) {
                t->calls[group]++;
                op = joint_op(t, group, class_id, (i32)slot);
                if (op < 0) return group;
            }
            t->op_of_slot[slot] = op;
            if (op < t->ops) continue;
            t->class_id[op] = class_id;
            t->label[op] = (i32)a->label[a->label_at[action] + i];
            t->microbatch[op] = (i32)a->microbatch[action];
            t->stage[op] = (i32)a->stage[action];
            t->fixed_ns[op] = flow ? flow[a->classes] : a->fixed_ns[first + i];
            t->work_bytes[op] = flow ? flow[2 * a->classes] : 0;
            t->route[op] = flow ? (i32)flow[3 * a->classes] : -1;
            t->cap[op] = flow ? flow[4 * a->classes] : 0;
            t->ops++;
        }
        for (i64 row = a->dependency_at[template]; row < a->dependency_at[template + 1]; row++)
            t->waits_at[t->op_of_slot[from + a->dependency[row]] + 1]++;
        for (i64 row = a->arrival_at[template]; row < a->arrival_at[template + 1]; row++)
            for (i64 k = 0; k < a->sources; k++)
                if (a->source_class[(place * a->actions + action) * a->sources + k] >= 0)
                    t->waits_at[t->op_of_slot[from + a->arrival[row]] + 1]++;
        for (i64 row = a->stream_at[template]; row < a->stream_at[template + 1]; row++)
            stream_at[a->stream[a->streams + row]]++;
        t->changes += a->change_at[template + 1] - a->change_at[template];
    }
    for (i64 row = 0; row < a->buffers; row++) t->waits_at[t->op_of_slot[begin + a->buffer[row]] + 1]++;
    return -1;
}

static i64 add_up(i64 *pointer, i64 rows) {
    for (i64 row = 0; row < rows; row++) pointer[row + 1] += pointer[row];
    return pointer[rows];
}

/* Slots, ops and the lengths of what belongs to them. Returns -1, or a group that its classes call unequally often. */
i64 place_ops(Output *t, i64 groups) {
    for (i64 class_id = 0; class_id < t->classes; class_id++) {
        const i64 uneven = place_class(t, (i32)class_id);
        if (uneven >= 0) return uneven;
    }
    for (i64 group = 0; group < groups; group++) {
        i64 calls = 0;
        if (!t->visitors[group]) continue;
        for (i32 slot = t->head[group]; slot >= 0; slot = t->next[slot]) calls++;
        if (calls * t->is_joint[group] != t->calls[group]) return group;
    }
    t->dependencies = add_up(t->waits_at, t->ops);
    t->placed = add_up(t->stream_at, t->classes * t->streams);
    return -1;
}

static void wait_for(Output *t, i64 waiting, i64 awaited) {
    const i32 op = t->op_of_slot[waiting];
    t->waits[t->waits_at[op] + t->next[op]++] = t->op_of_slot[awaited];
}

/* What ops wait for, streams and changes of memory; `next` counts from zero again, `placed_at` begins as zeros. */
void link_ops(Output *t, i64 *placed_at) {
    i64 changed = 0;
    for (i64 class_id = 0; class_id < t->classes; class_id++) {
        const Alike *a = alike_of(t, class_id);
        const i64 begin = t->begin[class_id], first_stream = class_id * t->streams;
        for (i64 action = 0; action < a->actions; action++) {
            const i64 template = a->template_of[action], from = begin + a->start[action];
            for (i64 row = a->dependency_at[template]; row < a->dependency_at[template + 1]; row++)
                wait_for(t, from + a->dependency[row], from + a->dependency[a->dependencies + row]);
            for (i64 row = a->stream_at[template]; row < a->stream_at[template + 1]; row++) {
                const i64 stream = first_stream + a->stream[a->streams + row];
                t->placed_op[t->stream_at[stream] + placed_at[stream]++] = t->op_of_slot[from + a->stream[row]];
            }
            for (i64 row = a->change_at[template]; row < a->change_at[template + 1]; row++, changed++) {
                const i64 *change = &a->change[row];
                t->change_op[changed] = t->op_of_slot[from + change[0]];
                t->change_class[changed] = (i32)class_id;
                t->at_finish[changed] = change[a->changes] != 0;
                t->delta[changed] = change[2 * a->changes];
                t->category[changed] = change[3 * a->changes];
            }
        }
        for (i64 row = 0; row < a->buffers; row++)
            wait_for(t, begin + a->buffer[row], begin + a->buffer[a->buffers + row]);
    }
    for (i64 class_id = 0; class_id < t->classes; class_id++) {
        const Alike *a = alike_of(t, class_id);
        for (i64 action = 0; action < a->actions; action++) {
            const i64 template = a->template_of[action], from = t->begin[class_id] + a->start[action];
            const i64 *source_class = &a->source_class[(t->place[class_id] * a->actions + action) * a->sources];
            for (i64 row = a->arrival_at[template]; row < a->arrival_at[template + 1]; row++)
                for (i64 k = 0; k < a->sources; k++) {
                    if (source_class[k] < 0) continue;
                    const Alike *b = alike_of(t, source_class[k]);
                    const i64 source = a->source_action[action * a->sources + k];
                    const i64 exit = b->start[source] + b->exit[b->template_of[source]];
                    wait_for(t, from + a->arrival[row], t->begin[source_class[k]] + exit);
                }
        }
    }
}
