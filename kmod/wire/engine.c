// SPDX-License-Identifier: GPL-2.0
/*
 * The simulated DMA engine: a thread that takes frames from the tx rings of one NIC
 * and delivers them to the other. Hardware would do this work, so it does not run
 * in the sender's or the receiver's context.
 */
#include <linux/hrtimer.h>
#include <linux/kthread.h>

#include "wire.h"

/* Packets from a tx ring before the next ring's turn. */
#define WIRE_BATCH 32
/* How long to wait for room before looking again, if nobody reports room. */
#define WIRE_STALL (NSEC_PER_MSEC)

/* Lets the frame behind go first, as often as the requested share says. */
static void wire_reorder(struct wire_nic *to, struct wire_tx *tx, u32 sent, u32 head)
{
	if (head - sent < 2 || !wire_fault_hits(&to->fault.reorder))
		return;
	swap(tx->ring[sent & tx->mask].skb, tx->ring[(sent + 1) & tx->mask].skb);
	wire_add(to->count.fault_reordered, 1);
}

/* Returns when to look again: 0 is at once, KTIME_MAX when there is more to send. */
static ktime_t wire_drain(struct wire_engine *engine, unsigned int index)
{
	struct wire_queue *queue = &engine->from->queue[index];
	struct wire_nic *to = engine->to;
	struct wire_tx *tx = &queue->tx;
	struct wire_frame *frame = &tx->frame;
	u32 head = smp_load_acquire(&tx->head); /* pairs with wire_xmit() */
	ktime_t again = KTIME_MAX, now = 0;
	unsigned int budget = WIRE_BATCH;
	u32 sent = tx->sent;

	if (sent == head)
		return again;
	if (to && READ_ONCE(to->fault.delay))
		now = ktime_get();
	for (; sent != head; budget--) {
		struct wire_slot *slot = &tx->ring[sent & tx->mask];
		enum wire_sent result = WIRE_DONE;

		if (!budget) {
			again = 0;
			break;
		}
		if (!to) {
			wire_add(queue->count.tx_discarded, 1);
		} else {
			if (now) {
				ktime_t due = ktime_add_us(slot->queued,
							   READ_ONCE(to->fault.delay));

				if (ktime_after(due, now)) {
					again = due;
					break;
				}
			}
			if (!frame->skb) {
				wire_reorder(to, tx, sent, head);
				wire_frame_look(engine, frame, slot->skb);
			}
			result = wire_frame_send(engine, frame);
		}
		if (result == WIRE_STALLED) {
			WRITE_ONCE(engine->stalled, true);
			again = ktime_add_ns(ktime_get(), WIRE_STALL);
			break;
		}
		if (result == WIRE_DONE) {
			frame->skb = NULL;
			sent++;
			__set_bit(index, engine->drained);
		}
	}
	/* All of it was read before NAPI may free it. */
	smp_store_release(&tx->sent, sent);
	return again;
}

static void wire_wake(struct wire_nic *nic, unsigned long *queues)
{
	unsigned int index;

	if (!nic || bitmap_empty(queues, WIRE_QUEUES_MAX))
		return;
	local_bh_disable();
	for_each_set_bit(index, queues, WIRE_QUEUES_MAX)
		wire_irq_raise(&nic->queue[index]);
	local_bh_enable();
	bitmap_zero(queues, WIRE_QUEUES_MAX);
}

static ktime_t wire_engine_run(struct wire_engine *engine)
{
	ktime_t again = KTIME_MAX;
	unsigned int index;

	mutex_lock(&engine->lock);
	WRITE_ONCE(engine->stalled, false);
	if (engine->from) {
		for (index = 0; index < engine->from->dev->real_num_tx_queues; index++)
			again = min(again, wire_drain(engine, index));
	}
	wire_wake(engine->to, engine->filled);
	wire_wake(engine->from, engine->drained);
	mutex_unlock(&engine->lock);
	return again;
}

static int wire_engine_thread(void *data)
{
	struct wire_engine *engine = data;

	while (!kthread_should_stop()) {
		ktime_t again;

		/* Before the rings are read, so a later kick is seen below. */
		smp_store_mb(engine->kicked, 0);
		again = wire_engine_run(engine);
		if (!again) {
			cond_resched();
			continue;
		}
		set_current_state(TASK_IDLE);
		if (!READ_ONCE(engine->kicked) && !kthread_should_stop())
			schedule_hrtimeout_range(again == KTIME_MAX ? NULL : &again, 0,
						 HRTIMER_MODE_ABS);
		__set_current_state(TASK_RUNNING);
	}
	return 0;
}

void wire_engine_kick(struct wire_engine *engine)
{
	/* The thread may have ended; our reference keeps its descriptor. */
	if (!xchg(&engine->kicked, 1))
		wake_up_process(engine->task);
}

static int wire_engine_start(struct wire_engine *engine)
{
	struct task_struct *task;

	mutex_init(&engine->lock);
	task = kthread_create(wire_engine_thread, engine, "wire-engine");
	if (IS_ERR(task))
		return PTR_ERR(task);
	engine->task = get_task_struct(task);
	wake_up_process(task);
	return 0;
}

static void wire_cable_free(struct kref *ref)
{
	struct wire_cable *cable = container_of(ref, struct wire_cable, ref);
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(cable->engine); i++) {
		if (cable->engine[i].task)
			put_task_struct(cable->engine[i].task);
	}
	kfree(cable);
}

void wire_cable_put(struct wire_cable *cable)
{
	kref_put(&cable->ref, wire_cable_free);
}

/* Ends both engines. Frames stay in the rings, for whoever stops the NICs. */
void wire_cable_unplug(struct wire_cable *cable)
{
	unsigned int i;

	if (!cable->plugged)
		return;
	cable->plugged = false;
	for (i = 0; i < ARRAY_SIZE(cable->engine); i++) {
		if (cable->engine[i].task)
			kthread_stop(cable->engine[i].task);
	}
}

struct wire_cable *wire_cable_make(void)
{
	struct wire_cable *cable = kzalloc(sizeof(*cable), GFP_KERNEL);
	unsigned int i;
	int err;

	if (!cable)
		return ERR_PTR(-ENOMEM);
	kref_init(&cable->ref);
	cable->plugged = true;
	for (i = 0; i < ARRAY_SIZE(cable->engine); i++) {
		err = wire_engine_start(&cable->engine[i]);
		if (err) {
			wire_cable_unplug(cable);
			wire_cable_put(cable);
			return ERR_PTR(err);
		}
	}
	return cable;
}
