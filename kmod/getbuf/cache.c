// SPDX-License-Identifier: GPL-2.0
/*
 * Lends from the page cache in place: what a mapping of the file would show without
 * a fault that reads. Never waits for a device.
 */
#include <linux/dax.h>
#include <linux/folio_batch.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/uio.h>

#include "lend.h"

/*
 * File systems for which we tried that up-to-date pages in the cache are the file's
 * content, once the file system says that it is well. Others may need a cluster
 * lock, a zone that still exists, or something else that only they know.
 */
static const char *const getbuf_cache_tried[] = { "ext4", "xfs" };

/* Whether we can look at the cache without the file system. */
bool getbuf_cache_suits(struct file *file)
{
	struct address_space *mapping = file->f_mapping;
	struct inode *inode = mapping->host;

	if ((file->f_flags & O_DIRECT) || IS_DAX(inode))
		return false;
	if (S_ISBLK(inode->i_mode))
		return true;
	if (!S_ISREG(inode->i_mode))
		return false;
	return shmem_mapping(mapping) ||
	       match_string(getbuf_cache_tried, ARRAY_SIZE(getbuf_cache_tried),
			    inode->i_sb->s_type->name) >= 0;
}

/*
 * Reads no bytes: the file system refuses that too after a shutdown. EAGAIN if it
 * would have to wait.
 */
static int getbuf_cache_ask(struct file *file, loff_t position)
{
	struct iov_iter none;
	struct kiocb kiocb;

	if (!S_ISREG(file_inode(file)->i_mode) || shmem_mapping(file->f_mapping))
		return 0;
	if (!(file->f_mode & FMODE_NOWAIT))
		return -EAGAIN;
	iov_iter_kvec(&none, ITER_DEST, NULL, 0, 0);
	init_sync_kiocb(&kiocb, file);
	kiocb.ki_pos = position;
	kiocb.ki_flags |= IOCB_NOWAIT;
	return file->f_op->read_iter(&kiocb, &none);
}

/* Adds the needed part of a folio; 0 at the end of the file. */
static int getbuf_cache_add(struct getbuf_lend *lend, struct file *file, struct folio *folio,
			    loff_t position, u32 length)
{
	struct address_space *mapping = file->f_mapping;
	loff_t size;

	if (folio_test_readahead(folio)) {
		DEFINE_READAHEAD(control, file, &file->f_ra, mapping, folio->index);

		page_cache_async_ra(&control, folio, DIV_ROUND_UP(length, PAGE_SIZE));
	}
	/* Check only now: what was beyond the end before may not be up to date. */
	size = i_size_read(mapping->host);
	if (position >= size)
		return 0;
	length = min_t(loff_t, length, size - position);
	length = min_t(loff_t, length, folio_pos(folio) + folio_size(folio) - position);
	if (mapping_writably_mapped(mapping))
		flush_dcache_folio(folio);
	folio_mark_accessed(folio);
	return getbuf_lend_add(lend, folio_page(folio, 0), offset_in_folio(folio, position), length);
}

/*
 * Charges the folios of a batch that can be lent, those before one that is not up to
 * date: one by one costs more than adding them. Fewer pages near a limit; an error
 * if there can be none.
 */
static long getbuf_cache_reserve(struct getbuf_lend *lend, struct folio_batch *batch)
{
	unsigned long pages = 0;
	unsigned int i;

	for (i = 0; i < folio_batch_count(batch) && folio_test_uptodate(batch->folios[i]); i++)
		pages += folio_nr_pages(batch->folios[i]);
	return pages ? getbuf_lend_reserve(lend, 1, pages) : 0;
}

/*
 * Returns how many bytes it could lend, 0 at the end of the file, EAGAIN if the
 * first of them is not in the cache. "missing": the byte after them is not in the
 * cache.
 */
int getbuf_cache_fill(struct getbuf_lend *lend, struct file *file, loff_t position, u32 length,
		      bool *missing)
{
	struct address_space *mapping = file->f_mapping;
	pgoff_t index = position >> PAGE_SHIFT, last = (position + length - 1) >> PAGE_SHIFT;
	struct folio_batch batch;
	u32 done = 0;
	int ret;

	ret = getbuf_cache_ask(file, position);
	*missing = ret == -EAGAIN;
	if (ret < 0)
		return ret;
	if (position >= i_size_read(mapping->host))
		return 0;
	folio_batch_init(&batch);
	while (done < length && !*missing) {
		unsigned int i;

		*missing = !filemap_get_folios_contig(mapping, &index, last, &batch);
		if (*missing)
			break;
		ret = getbuf_cache_reserve(lend, &batch);
		if (ret < 0)
			break;
		for (i = 0; i < folio_batch_count(&batch) && done < length; i++) {
			struct folio *folio = batch.folios[i];

			*missing = position + done < folio_pos(folio) ||
				   !folio_test_uptodate(folio);
			if (*missing)
				break;
			ret = getbuf_cache_add(lend, file, folio, position + done, length - done);
			if (ret <= 0)
				goto out;
			done += ret;
			/* The end of the file, or a limit. */
			if (done < length && position + done < folio_pos(folio) + folio_size(folio))
				goto out;
		}
		folio_batch_release(&batch);
	}
out:
	folio_batch_release(&batch);
	if (done)
		file_accessed(file);
	else if (*missing)
		ret = -EAGAIN;
	return done ? done : ret;
}
