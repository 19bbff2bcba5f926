// SPDX-License-Identifier: GPL-2.0
/*
 * Faults, and other settings that real hardware does not have: files in the
 * directory "wire" of the interface in sysfs. They act on what arrives at the
 * interface.
 */
#include <linux/device.h>
#include <linux/kstrtox.h>
#include <linux/random.h>
#include <net/net_namespace.h>

#include "wire.h"

#define WIRE_MILLION	1000000
#define WIRE_DELAY_MAX	1000000

bool wire_fault_hits(const u32 *share)
{
	u32 wanted = READ_ONCE(*share);

	return unlikely(wanted) && get_random_u32_below(WIRE_MILLION) < wanted;
}

static ssize_t wire_fault_store(struct net_device *dev, u32 *value, u32 limit, const char *text,
				size_t size)
{
	u32 wanted;
	int err;

	if (!ns_capable(dev_net(dev)->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	err = kstrtou32(text, 10, &wanted);
	if (err)
		return err;
	if (wanted > limit)
		return -ERANGE;
	WRITE_ONCE(*value, wanted);
	return size;
}

#define WIRE_FAULT(name, limit)								\
static ssize_t name##_show(struct device *device, struct device_attribute *attribute,	\
			   char *text)							\
{											\
	struct wire_nic *nic = netdev_priv(to_net_dev(device));				\
											\
	return sysfs_emit(text, "%u\n", READ_ONCE(nic->fault.name));			\
}											\
											\
static ssize_t name##_store(struct device *device, struct device_attribute *attribute,	\
			    const char *text, size_t size)				\
{											\
	struct wire_nic *nic = netdev_priv(to_net_dev(device));				\
											\
	return wire_fault_store(nic->dev, &nic->fault.name, limit, text, size);		\
}											\
static DEVICE_ATTR_RW(name)

WIRE_FAULT(drop, WIRE_MILLION);
WIRE_FAULT(reorder, WIRE_MILLION);
WIRE_FAULT(wrong_queue, WIRE_MILLION);
WIRE_FAULT(alloc_fail, WIRE_MILLION);
WIRE_FAULT(delay, WIRE_DELAY_MAX);
WIRE_FAULT(lossless, 1);
WIRE_FAULT(packing, 1);

static struct attribute *wire_fault_attributes[] = {
	&dev_attr_drop.attr,
	&dev_attr_reorder.attr,
	&dev_attr_wrong_queue.attr,
	&dev_attr_alloc_fail.attr,
	&dev_attr_delay.attr,
	&dev_attr_lossless.attr,
	&dev_attr_packing.attr,
	NULL
};

const struct attribute_group wire_fault_group = {
	.name = "wire",
	.attrs = wire_fault_attributes,
};
