/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts by their addresses, and the interfaces of this one. Of base it is what asks the system. */
#ifndef KVFERRY_BASE_HOST_H
#define KVFERRY_BASE_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { BASE_HOST_TEXT = 64 };

typedef struct base_host {
    unsigned char ip[16]; /* of IPv4: the IPv6 one that stands for it (::ffff:a.b.c.d) */
    uint32_t scope;       /* of a link-local one: the number of its interface; else 0 */
} base_host;

/* Of digits, with a zone if it has one: fe80::1%eth0. False: it is a name, or of no interface here. */
bool base_host_parse(const char *text, base_host *host);
void base_host_format(const base_host *host, char text[BASE_HOST_TEXT]);

bool base_host_same(const base_host *a, const base_host *b);
bool base_host_is_ipv4(const base_host *host);
bool base_host_is_loopback(const base_host *host);
bool base_host_is_wildcard(const base_host *host); /* 0.0.0.0, :: */
bool base_host_is_link_local(const base_host *host);

typedef struct base_interface {
    const char *name;
    bool loopback;
    base_host host; /* one of its addresses */
} base_interface;

/* Shows `look` the addresses of interfaces that are up, until it says true; false: it never did. */
bool base_interfaces_find(bool (*look)(void *context, const base_interface *one), void *context);

#endif
