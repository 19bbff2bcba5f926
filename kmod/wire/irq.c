// SPDX-License-Identifier: GPL-2.0
/*
 * An interrupt for each queue, raised by the engine: /proc/interrupts counts the
 * events of each queue, and its NAPI runs on one CPU of its smp_affinity, which
 * effective_affinity names.
 * Interrupts exist as long as the interface, so their affinity outlives rings and
 * channels.
 */
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/irqdomain.h>

#include "wire.h"

static int wire_irq_set_affinity(struct irq_data *data, const struct cpumask *mask, bool force)
{
	unsigned int cpu = cpumask_any_and_distribute(mask, cpu_online_mask);

	if (cpu >= nr_cpu_ids)
		return -EINVAL;
	/* Read whenever the interrupt is raised. */
	irq_data_update_effective_affinity(data, cpumask_of(cpu));
	return IRQ_SET_MASK_OK;
}

static void wire_irq_nothing(struct irq_data *data)
{
}

static struct irq_chip wire_irq_chip = {
	.name			= "wire",
	.irq_mask		= wire_irq_nothing,
	.irq_unmask		= wire_irq_nothing,
	.irq_set_affinity	= wire_irq_set_affinity,
};

static int wire_irq_map(struct irq_domain *domain, unsigned int irq, irq_hw_number_t index)
{
	irq_set_chip_and_handler(irq, &wire_irq_chip, handle_simple_irq);
	return 0;
}

static const struct irq_domain_ops wire_irq_ops = {
	.map = wire_irq_map,
};

static irqreturn_t wire_irq_handler(int irq, void *data)
{
	struct wire_queue *queue = data;

	napi_schedule(&queue->napi);
	return IRQ_HANDLED;
}

static void wire_irq_elsewhere(void *data)
{
	struct wire_queue *queue = data;

	clear_bit(0, &queue->raised);
	/* What the engines write from here on raises it anew. */
	smp_mb__after_atomic();
	generic_handle_irq_safe(queue->irq);
}

/* With bottom halves off: NAPI runs when they are back on. */
void wire_irq_raise(struct wire_queue *queue)
{
	struct irq_data *data = irq_get_irq_data(queue->irq);
	unsigned int cpu = cpumask_first(irq_data_get_effective_affinity_mask(data));

	/* Here too if that CPU has gone. */
	if (cpu == raw_smp_processor_id() || cpu >= nr_cpu_ids || !cpu_online(cpu)) {
		generic_handle_irq_safe(queue->irq);
		return;
	}
	/*
	 * If it is raised there already, that CPU has yet to look at the rings. The
	 * engines of both directions come here, and only one may queue the call.
	 */
	if (test_and_set_bit(0, &queue->raised))
		return;
	if (smp_call_function_single_async(cpu, &queue->raise))
		wire_irq_elsewhere(queue);
}

int wire_irq_make(struct wire_nic *nic, unsigned int queues)
{
	unsigned int i;
	int err;

	nic->irqs = irq_domain_create_linear(NULL, queues, &wire_irq_ops, nic);
	if (!nic->irqs)
		return -ENOMEM;
	for (i = 0; i < queues; i++) {
		struct wire_queue *queue = &nic->queue[i];
		unsigned int irq = irq_create_mapping(nic->irqs, i);

		INIT_CSD(&queue->raise, wire_irq_elsewhere, queue);
		snprintf(queue->irq_name, sizeof(queue->irq_name), "%s-%u", nic->dev->name, i);
		err = irq ? request_irq(irq, wire_irq_handler, 0, queue->irq_name, queue) : -ENOSPC;
		if (err) {
			irq_dispose_mapping(irq);
			wire_irq_free(nic);
			return err;
		}
		queue->irq = irq;
	}
	return 0;
}

/* Only when the engine raises none any more. */
void wire_irq_free(struct wire_nic *nic)
{
	unsigned int i;

	/*
	 * Interrupts raised on other CPUs are over then. A CPU answers the calls that somebody waits for before the
	 * others in its queue, among them those that raise. So the first wait may end before these have run; the
	 * second ends after them.
	 */
	kick_all_cpus_sync();
	kick_all_cpus_sync();
	for (i = 0; i < min(nic->dev->num_rx_queues, nic->dev->num_tx_queues); i++) {
		struct wire_queue *queue = &nic->queue[i];

		if (!queue->irq)
			continue;
		free_irq(queue->irq, queue);
		irq_dispose_mapping(queue->irq);
	}
	irq_domain_remove(nic->irqs);
}
