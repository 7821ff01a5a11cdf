/* The event engine: the compiled twin of `reference`. It gives the same integers op by op; `event.py` calls it.
 *
 * Only flows need a clock. When an op without work starts, its finish is known, however far ahead of the clock, and so
 * are the starts of ops that wait for it: `pass_on` follows such chains at once. The heap holds the instants at which
 * flows begin to drain, have drained, or links change.
 *
 * A link that one flow has to itself limits that flow like its cap does. Sharing only looks at links of several flows:
 * of an all-reduce over thousands of NICs, at the few that a message crosses as well.
 *
 * Of millions of flows few are under way at once. The record of a drained flow, with its hops, is therefore reused for
 * the next flow with the same route: there is room for all flows, and memory that is not used is never touched.
 *
 * Times are nanoseconds, rates and work in the units of `simpar.program.ir.flow`, whose FRACTION_BITS the compiler is
 * given. */

#ifdef __linux__
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#endif
#include <stdint.h>
#include <stdlib.h>

typedef int32_t i32; /* indices of ops, flows, nodes, links and routes; NONE for none */
typedef int64_t i64;

enum { NONE = -1, STARTED = -1, FIXED = -1 }; /* FIXED: the flow of an op without work */
enum { WAYS = 4 };                           /* children of an entry of the heap */
enum { FEW = 8 };                            /* of an op's first followers, among which duplicates are looked for */
enum { ENDED, TOO_CONTENDED, STUCK, NO_MEMORY };
enum { LINE = 64, PAGE = 4096, LARGE_BYTES = 1 << 22 }; /* of a cache line, a page, a block in large pages */

/* What `event.py` hands over. Row i of ragged rows is item[pointer[i]] to item[pointer[i + 1] - 1]. */
typedef struct {
    i64 ops, flows, nodes, links, routes, changes, most_visits;
    const i32 *pointer, *follower, *waiting;           /* as `follow` gives them */
    const i64 *fixed_ns, *work_bytes;                  /* of every op */
    const i64 *work, *cap;                             /* of every op with work, in order of ops */
    const i32 *route;                                  /* likewise; the last route has no hops */
    const i64 *hops_of;                                /* pointer of the hops of routes [routes + 1] */
    const i32 *hop_link;                               /* hops of a route, ordered by `hop_alone` */
    const i64 *hop_coefficient, *hop_alone;            /* alone: the rate that the link gives a flow alone */
    const i64 *rate;                                   /* of every link */
    const i64 *change;                                 /* rows (time_ns, link, rate) */
    i64 *start_ns, *finish_ns;                         /* results; -1: never */
} Tables;

typedef struct { i32 waiting, flow; } Op;
typedef struct { i64 time_ns, entry; } Entry; /* entries: flows that drain, flows that begin, changes */
typedef struct { i64 rate, left, load, share, stamp; i32 head, flows; } Link; /* head: first node of its active flows */
typedef struct {
    i64 remaining, cap, rate, since_ns, new_rate, limit, drained_ns, stamp; /* limit: of cap and own links */
    i32 op, first_node, last_node, shared, next_free; /* shared: first of its nodes on links of several flows */
} Flow;
typedef struct {
    i64 coefficient, alone;
    i32 link, flow, previous, following, before, behind; /* neighbours on the link; among the flow's shared nodes */
} Node;

typedef struct {
    const Tables *given;
    Op *ops;
    Flow *flows;
    Node *nodes;
    Link *links;
    Entry *heap;
    i32 *touched, *shared_by, *done, *free; /* links and flows of a re-share; ops with a finish; last free flow + 1 */
    i64 heap_size, heap_room, touched_count, shared_count, done_count;
    i64 made, nodes_made; /* records of flows and nodes that are in use or free again */
    i64 now_ns, stamp, visits;
} Run;

static i64 larger(i64 one, i64 other) { return one > other ? one : other; }
static i64 smaller(i64 one, i64 other) { return one < other ? one : other; }
static i64 divided_up(i64 work, i64 rate) { return work / rate + (work % rate > 0); } /* rate > 0 */

/* The heap. */

static void sift_down(Entry *heap, i64 size, i64 at) {
    const Entry moved = heap[at];
    for (;;) {
        i64 child = WAYS * at + 1;
        if (child >= size) break;
        const i64 end = smaller(child + WAYS, size);
        for (i64 other = child + 1; other < end; other++)
            if (heap[other].time_ns < heap[child].time_ns) child = other;
        if (heap[child].time_ns >= moved.time_ns) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Schedule an entry; a full heap first drops entries whose time has changed since. */
static void push(Run *run, i64 time_ns, i64 entry) {
    Entry *heap = run->heap;
    if (run->heap_size == run->heap_room) {
        i64 kept = 0;
        for (i64 at = 0; at < run->heap_size; at++) {
            const i64 drains = heap[at].entry;
            if (drains >= run->given->flows || run->flows[drains].drained_ns == heap[at].time_ns)
                heap[kept++] = heap[at];
        }
        for (i64 at = kept / WAYS; at >= 0; at--) sift_down(heap, kept, at);
        run->heap_size = kept;
    }
    i64 at = run->heap_size++;
    while (at > 0) {
        const i64 parent = (at - 1) / WAYS;
        if (heap[parent].time_ns <= time_ns) break;
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = (Entry){time_ns, entry};
}

static i64 pop(Run *run) {
    const i64 entry = run->heap[0].entry;
    run->heap[0] = run->heap[--run->heap_size];
    sift_down(run->heap, run->heap_size, 0);
    return entry;
}

static void foresee(Run *run, i64 flow, i64 time_ns) {
    run->flows[flow].drained_ns = time_ns;
    push(run, time_ns, flow);
}

/* Which flows are on which links. */

static void touch(Run *run, i32 link) {
    if (run->links[link].stamp == run->stamp) return;
    run->links[link].stamp = run->stamp;
    run->touched[run->touched_count++] = link;
}

/* Note that the link of a node has several flows from now on. */
static void share(Run *run, i32 at) {
    Node *nodes = run->nodes;
    Flow *flow = &run->flows[nodes[at].flow];
    nodes[at].before = NONE;
    nodes[at].behind = flow->shared;
    if (flow->shared >= 0) nodes[flow->shared].before = at;
    flow->shared = at;
}

static void unshare(Run *run, i32 at) {
    const Node *node = &run->nodes[at];
    if (node->before >= 0) run->nodes[node->before].behind = node->behind;
    else run->flows[node->flow].shared = node->behind;
    if (node->behind >= 0) run->nodes[node->behind].before = node->before;
}

/* Append a flow to the flows on the link of one of its nodes. */
static void enter(Run *run, i32 at) {
    Node *node = &run->nodes[at];
    Link *link = &run->links[node->link];
    node->previous = NONE;
    node->following = link->head;
    if (link->head >= 0) {
        run->nodes[link->head].previous = at;
        if (link->flows == 1) share(run, link->head);
        share(run, at);
    }
    link->head = at;
    link->flows++;
}

/* Remove a flow from the link of one of its nodes. */
static void leave(Run *run, i32 at) {
    const Node *node = &run->nodes[at];
    Link *link = &run->links[node->link];
    if (node->previous >= 0) run->nodes[node->previous].following = node->following;
    else link->head = node->following;
    if (node->following >= 0) run->nodes[node->following].previous = node->previous;
    if (--link->flows == 1) unshare(run, link->head);
}

/* Set the limit of a flow: the lowest of its cap and the rates of links that it has to itself.
 * Unless capacities change, its nodes are ordered by the rate that their links give it alone: the first one decides. */
static void set_limit(Run *run, Flow *flow) {
    const int changing = run->given->changes > 0;
    flow->limit = flow->cap;
    for (i32 at = flow->first_node; at < flow->last_node; at++) {
        const Node *node = &run->nodes[at];
        const Link *link = &run->links[node->link];
        run->visits++;
        if (link->flows != 1) continue;
        flow->limit = smaller(flow->limit, changing ? (link->rate << FRACTION_BITS) / node->coefficient : node->alone);
        if (!changing) break;
    }
}

/* Let a flow start to drain: at its limit if it has all its links to itself, so that no other flow is touched. */
static void begin(Run *run, i64 begun) {
    Flow *flow = &run->flows[begun];
    flow->rate = 0;
    flow->since_ns = run->now_ns;
    flow->shared = NONE;
    for (i32 at = flow->first_node; at < flow->last_node; at++) enter(run, at);
    if (flow->shared >= 0) {
        for (i32 at = flow->shared; at >= 0; at = run->nodes[at].behind) touch(run, run->nodes[at].link);
        return;
    }
    set_limit(run, flow);
    run->visits += flow->last_node - flow->first_node;
    if (flow->limit > 0) {
        flow->rate = flow->limit;
        foresee(run, begun, run->now_ns + divided_up(flow->remaining, flow->rate));
    }
}

/* Take a drained flow off its links; links that it had to itself need no re-share. */
static void end(Run *run, i64 drained) {
    const Flow *flow = &run->flows[drained];
    for (i32 at = flow->first_node; at < flow->last_node; at++) {
        leave(run, at);
        if (run->links[run->nodes[at].link].flows > 0) touch(run, run->nodes[at].link);
        else run->visits++;
    }
}

/* Rule 3: max-min fair shares. */

/* Extend the touched links to all shared links and flows connected to them, and sum up the load of each.
 * Returns how many of the flows share a link; the others drain at their limits. */
static i64 find_component(Run *run) {
    i64 sharing = 0;
    for (i64 at = 0; at < run->touched_count; at++) {
        Link *link = &run->links[run->touched[at]];
        i64 load = 0;
        for (i32 current = link->head; current >= 0; current = run->nodes[current].following) {
            Flow *flow = &run->flows[run->nodes[current].flow];
            load += run->nodes[current].coefficient;
            if (flow->stamp == run->stamp) continue;
            flow->stamp = run->stamp;
            run->shared_by[run->shared_count++] = run->nodes[current].flow;
            set_limit(run, flow);
            flow->new_rate = flow->shared < 0 ? flow->limit : NONE;
            sharing += flow->shared >= 0;
            for (i32 other = flow->shared; other >= 0; other = run->nodes[other].behind)
                touch(run, run->nodes[other].link);
        }
        link->left = link->rate << FRACTION_BITS;
        link->load = link->flows > 1 ? load : 0;
    }
    run->visits += run->touched_count;
    return sharing;
}

/* The smallest of the shares of links still in use and the limits of flows without a rate. */
static i64 fair_share(Run *run) {
    i64 fair = INT64_MAX, kept = 0;
    run->visits += run->touched_count;
    for (i64 i = 0; i < run->touched_count; i++) {
        Link *link = &run->links[run->touched[i]];
        if (link->load <= 0) continue;
        run->touched[kept++] = run->touched[i];
        link->share = link->left / link->load;
        fair = smaller(fair, link->share);
    }
    run->touched_count = kept;
    for (i64 i = 0; i < run->shared_count; i++) {
        const Flow *flow = &run->flows[run->shared_by[i]];
        if (flow->new_rate < 0) fair = smaller(fair, flow->limit);
    }
    return fair;
}

static void freeze(Run *run, Flow *frozen, i64 rate) {
    frozen->new_rate = rate;
    for (i32 at = frozen->shared; at >= 0; at = run->nodes[at].behind) {
        const Node *node = &run->nodes[at];
        run->links[node->link].left -= rate * node->coefficient;
        run->links[node->link].load -= node->coefficient;
    }
}

/* Max-min rates of the flows found; all links and limits at the minimum freeze together. */
static void fill(Run *run, i64 unfrozen) {
    while (unfrozen > 0) {
        const i64 fair = fair_share(run);
        for (i64 i = 0; i < run->touched_count; i++) {
            const Link *link = &run->links[run->touched[i]];
            if (link->share != fair) continue; /* shares were computed before this round froze anything */
            for (i32 current = link->head; current >= 0; current = run->nodes[current].following) {
                Flow *flow = &run->flows[run->nodes[current].flow];
                if (flow->new_rate >= 0) continue;
                freeze(run, flow, fair);
                unfrozen--;
            }
        }
        for (i64 i = 0; i < run->shared_count; i++) {
            Flow *flow = &run->flows[run->shared_by[i]];
            if (flow->new_rate >= 0 || flow->limit != fair) continue;
            freeze(run, flow, fair);
            unfrozen--;
        }
    }
}

/* Re-share the component of the touched links, and schedule its finishes anew. */
static void settle(Run *run) {
    fill(run, find_component(run));
    for (i64 i = 0; i < run->shared_count; i++) {
        Flow *flow = &run->flows[run->shared_by[i]];
        if (flow->new_rate == flow->rate) continue;
        flow->remaining -= flow->rate * (run->now_ns - flow->since_ns);
        flow->rate = flow->new_rate;
        flow->since_ns = run->now_ns;
        if (flow->rate > 0) foresee(run, run->shared_by[i], run->now_ns + divided_up(flow->remaining, flow->rate));
        else flow->drained_ns = NONE;
    }
    run->touched_count = run->shared_count = 0;
    run->stamp++;
}

/* Rules 1 and 2: ops. */

/* A record, with nodes, for a flow on a route: one that is free again, or a new one. */
static i32 make_flow(Run *run, i32 route) {
    const Tables *given = run->given;
    const i32 free = run->free[route] - 1;
    if (free >= 0) {
        run->free[route] = run->flows[free].next_free + 1;
        return free;
    }
    const i32 made = (i32)run->made++;
    Flow *flow = &run->flows[made];
    flow->stamp = 0;
    flow->first_node = (i32)run->nodes_made;
    for (i64 i = given->hops_of[route]; i < given->hops_of[route + 1]; i++) {
        Node *node = &run->nodes[run->nodes_made++];
        node->flow = made;
        node->link = given->hop_link[i];
        node->coefficient = given->hop_coefficient[i];
        node->alone = given->hop_alone[i];
    }
    flow->last_node = (i32)run->nodes_made;
    return made;
}

/* Start an op that waits for nothing more: its finish is known unless it has work to drain. */
static void start(Run *run, i32 op) {
    const Tables *given = run->given;
    const i32 demand = run->ops[op].flow;
    const i64 fixed_until_ns = given->start_ns[op] + given->fixed_ns[op];
    run->ops[op].waiting = STARTED;
    if (demand == FIXED) {
        given->finish_ns[op] = fixed_until_ns;
        run->done[run->done_count++] = op;
        return;
    }
    const i32 made = make_flow(run, given->route[demand]);
    Flow *flow = &run->flows[made];
    flow->op = op;
    flow->remaining = given->work[demand];
    flow->cap = given->cap[demand];
    flow->drained_ns = NONE;
    push(run, fixed_until_ns, given->flows + made);
}

/* End the op of a drained flow, the only op whose finish is new, and free the flow's record. */
static void finish(Run *run, i64 drained) {
    Flow *flow = &run->flows[drained];
    const i32 route = run->given->route[run->ops[flow->op].flow];
    run->given->finish_ns[flow->op] = run->now_ns;
    run->done[0] = flow->op;
    run->done_count = 1;
    flow->next_free = run->free[route] - 1;
    run->free[route] = (i32)drained + 1;
}

/* Start the ops that waited last for an op whose finish is now known, and follow such chains. */
static void pass_on(Run *run) {
    const Tables *given = run->given;
    while (run->done_count > 0) {
        const i32 done = run->done[--run->done_count];
        for (i32 i = given->pointer[done]; i < given->pointer[done + 1]; i++) {
            const i32 after = given->follower[i];
            given->start_ns[after] = larger(given->start_ns[after], given->finish_ns[done]);
            if (--run->ops[after].waiting == 0) start(run, after);
        }
    }
}

static void run_to_the_end(Run *run) {
    const Tables *given = run->given;
    for (i64 i = 0; i < given->changes; i++) push(run, given->change[3 * i], 2 * given->flows + i);
    for (i32 op = 0; op < given->ops; op++)
        if (run->ops[op].waiting == 0) {
            start(run, op);
            pass_on(run);
        }
    while (run->heap_size > 0 && run->visits <= given->most_visits) {
        run->now_ns = run->heap[0].time_ns;
        while (run->heap_size > 0 && run->heap[0].time_ns == run->now_ns) {
            const i64 entry = pop(run);
            if (entry >= 2 * given->flows) {
                const i64 *change = &given->change[3 * (entry - 2 * given->flows)];
                run->links[change[1]].rate = change[2];
                touch(run, (i32)change[1]);
            } else if (entry >= given->flows) {
                begin(run, entry - given->flows);
            } else if (run->flows[entry].drained_ns == run->now_ns) {
                run->flows[entry].drained_ns = NONE;
                end(run, entry);
                finish(run, entry);
                pass_on(run);
            }
        }
        if (run->touched_count > 0) settle(run);
    }
}

/* Fill the records of ops, which are numbered with work or FIXED, and of links. */
static void prepare(Run *run) {
    const Tables *given = run->given;
    i32 flows = 0;
    for (i64 op = 0; op < given->ops; op++) {
        run->ops[op].waiting = given->waiting[op];
        run->ops[op].flow = given->work_bytes[op] ? flows++ : FIXED;
        given->start_ns[op] = 0;
        given->finish_ns[op] = -1;
    }
    for (i64 link = 0; link < given->links; link++) {
        run->links[link].rate = given->rate[link];
        run->links[link].head = NONE;
    }
}

/* Ops that have not started have neither a start nor a finish. */
static int close_run(Run *run) {
    const Tables *given = run->given;
    int result = ENDED;
    if (run->visits > given->most_visits) return TOO_CONTENDED;
    for (i64 op = 0; op < given->ops; op++) {
        if (run->ops[op].waiting != STARTED) given->start_ns[op] = -1;
        if (given->finish_ns[op] < 0) result = STUCK;
    }
    return result;
}

/* The places of tables in one block, each on a line of its own; `begin` NULL measures. Returns the end. */
static size_t place_tables(Run *run, char *begin) {
    const Tables *given = run->given;
    const struct { void **table; i64 count; size_t size; } all[] = {
        {(void **)&run->ops, given->ops, sizeof(Op)},
        {(void **)&run->done, given->ops, sizeof(i32)},
        {(void **)&run->flows, given->flows, sizeof(Flow)},
        {(void **)&run->nodes, given->nodes, sizeof(Node)},
        {(void **)&run->links, given->links, sizeof(Link)},
        {(void **)&run->heap, run->heap_room, sizeof(Entry)},
        {(void **)&run->touched, given->links, sizeof(i32)},
        {(void **)&run->shared_by, given->flows, sizeof(i32)},
        {(void **)&run->free, given->routes, sizeof(i32)},
    };
    size_t end = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (begin) *all[i].table = begin + end;
        end += (((size_t)all[i].count + 1) * all[i].size + LINE - 1) / LINE * LINE;
    }
    return end;
}

/* A block of zeros. Where it is large it asks for large pages, since the first use of a small one costs more than
 * filling it; tables that lie in one block share the small ones at its ends. */
static char *zeros(size_t bytes) {
    char *block = calloc(bytes, 1);
#ifdef MADV_HUGEPAGE
    const uintptr_t first = ((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    if (block && bytes >= LARGE_BYTES) madvise((void *)first, bytes - PAGE, MADV_HUGEPAGE); /* an advice: it may fail */
#endif
    return block;
}

int run_program(const Tables *given) {
    Run run = {.given = given, .stamp = 1};
    run.heap_room = 2 * (given->flows + given->changes) + WAYS;
    char *block = zeros(place_tables(&run, NULL));
    if (!block) return NO_MEMORY;
    place_tables(&run, block);
    prepare(&run);
    run_to_the_end(&run);
    const int result = close_run(&run);
    free(block);
    return result;
}

/* Write the followers of every op and the number of ops for which each waits; returns the number of pairs.
 *
 * Row i of `depends` are the ops on which op i depends, rows of `stream` the ops of each stream in order. `pointer`
 * [ops + 1] and `waiting` [ops] begin as zeros. The followers of op i end up in follower[pointer[i]] and on: ops that
 * depend on it, then ops behind it on streams. A pair that is both a dependency and in stream order counts once, if it
 * is among the first FEW of an op. */
i64 follow(i64 ops, const i64 *depends, const i32 *depend, i64 streams, const i64 *begins, const i32 *stream,
           i32 *pointer, i32 *follower, i32 *waiting) {
    for (i64 op = 0; op < ops; op++) {
        waiting[op] += (i32)(depends[op + 1] - depends[op]);
        for (i64 i = depends[op]; i < depends[op + 1]; i++) pointer[depend[i]]++;
    }
    for (i64 one = 0; one < streams; one++)
        for (i64 i = begins[one] + 1; i < begins[one + 1]; i++) {
            pointer[stream[i - 1]]++;
            waiting[stream[i]]++;
        }
    for (i64 op = 1; op <= ops; op++) pointer[op] += pointer[op - 1];
    for (i64 one = streams - 1; one >= 0; one--)
        for (i64 i = begins[one + 1] - 1; i > begins[one]; i--) follower[--pointer[stream[i - 1]]] = stream[i];
    for (i64 op = ops - 1; op >= 0; op--)
        for (i64 i = depends[op + 1] - 1; i >= depends[op]; i--) follower[--pointer[depend[i]]] = (i32)op;
    i32 kept = 0;
    for (i64 op = 0; op < ops; op++) {
        const i32 first = pointer[op];
        pointer[op] = kept;
        for (i32 i = first; i < pointer[op + 1]; i++) {
            int known = 0;
            for (i64 one = pointer[op]; one < smaller(kept, pointer[op] + FEW); one++)
                known |= follower[one] == follower[i];
            if (known) waiting[follower[i]]--;
            else follower[kept++] = follower[i];
        }
    }
    pointer[ops] = kept;
    return kept;
}
