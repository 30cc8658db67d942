"""The archive: sealed segments in object storage, and the way back (tiered storage, KIP-405).

    objects.py      what is asked of an object store; a directory as one
    s3.py           S3 and what speaks like it
    descriptor.py   what is archived: one small file beside the log for each archived segment
    uploads.py      copying segments out, in the background
    deletions.py    deletes what is not retained any longer, in the background
    cache.py        chunks that were read back, bounded in bytes
    chunks.py       fetches chunks, each once for all readers that wait
    options.py      where it is
    archive.py      all of it together; what the log and the broker talk to

In the archive, an object per file, under names that no other topic can ever have:

    <cluster id>/<topic id>/topic.json                               name and settings, to be read
    <cluster id>/<topic id>/<partition>/00000000000000012345.log     byte for byte the local file
                                            ….index .timeindex …     likewise
                                            ….archived               the descriptor, put last
                                 ….1.log .1.index …     its generation 1, after an erasure in it

The order that makes a crash harmless: objects, read back and compared; the descriptor's object;
the local descriptor, durable; only then may local retention take the local files. What a crash
leaves half done is done again, over the same names. To delete: the descriptor is renamed
(`….archived.deleted`, durable), the objects go, then the renamed descriptor; a deleted topic is
written into the catalog as work to do before the topic itself is taken out of it.
"""
