// SPDX-License-Identifier: GPL-2.0
/* Warns when it is loaded, so that the lab's tests see a real report of the kernel. */
#include <linux/bug.h>
#include <linux/module.h>

static int __init handoff_warn_init(void)
{
	WARN(1, "handoff_warn: as asked for\n");
	return 0;
}

static void __exit handoff_warn_exit(void)
{
}

module_init(handoff_warn_init);
module_exit(handoff_warn_exit);

MODULE_DESCRIPTION("Warns when it is loaded, for the tests of the lab");
MODULE_LICENSE("GPL");
