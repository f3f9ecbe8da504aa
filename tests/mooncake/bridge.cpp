// SPDX-License-Identifier: Apache-2.0
/*
 * The C interface that Mooncake's wheel leaves out, over the C++ classes that its Python module exports:
 * scripts/install-mooncake builds it. The declarations are as wide as version 0.3.13.post1 needs, and hold
 * for no other: each class has the members that are called, and at least the room that the real one takes.
 */
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

namespace mooncake {

class Status {
  public:
    ~Status() { delete[] message; }
    Status(const Status &) = delete;
    uint16_t code;
    const char *message;
};

class Transport {
  public:
    struct TransferRequest {
        int opcode;
        void *source;
        uint64_t target;
        uint64_t offset;
        uint64_t length;
        int retries, hint;
        uint64_t group;
    };
    struct TransferStatus {
        int state;
        uint64_t bytes;
    };
};

class TransferEngine {
  public:
    TransferEngine(bool discover);
    ~TransferEngine();
    int init(const std::string &metadata, const std::string &server, const std::string &host,
             uint64_t port);
    Transport *installTransport(const std::string &name, void **arguments);
    std::string getLocalIpAndPort();
    uint64_t openSegment(const std::string &name);
    int syncSegmentCache(const std::string &name);
    int closeSegment(uint64_t segment);
    int registerLocalMemory(void *address, size_t bytes, const std::string &location, bool remote,
                            bool update);
    int unregisterLocalMemory(void *address, bool update);
    uint64_t allocateBatchID(size_t count);
    Status submitTransfer(uint64_t batch, const std::vector<Transport::TransferRequest> &requests);
    Status getTransferStatus(uint64_t batch, size_t task, Transport::TransferStatus &status);
    Status freeBatchID(uint64_t batch);

  private:
    char room[4096];
};

} // namespace mooncake

using mooncake::Transport;
using mooncake::TransferEngine;

static TransferEngine *of(void *instance) { return static_cast<TransferEngine *>(instance); }

static int32_t segment_id(uint64_t segment)
{
    return segment > INT32_MAX ? -1 : static_cast<int32_t>(segment);
}

extern "C" {

struct request {
    int opcode;
    void *source;
    int32_t target;
    uint32_t file;
    uint64_t offset, length;
};

void *createTransferEngine(const char *metadata, const char *server, const char *host, uint64_t port,
                           int discover)
{
    TransferEngine *made = new TransferEngine(discover != 0);
    if (made->init(metadata, server, host, port) == 0)
        return made;
    delete made;
    return nullptr;
}

void destroyTransferEngine(void *instance) { delete of(instance); }

void enableGracefulShutdown(void *) {}

int getLocalIpAndPort(void *instance, char *name, size_t size)
{
    std::snprintf(name, size, "%s", of(instance)->getLocalIpAndPort().c_str());
    return 0;
}

void *installTransport(void *instance, const char *transport, void **arguments)
{
    return of(instance)->installTransport(transport, arguments);
}

int32_t openSegment(void *instance, const char *name) { return segment_id(of(instance)->openSegment(name)); }

int32_t openSegmentNoCache(void *instance, const char *name)
{
    int code = of(instance)->syncSegmentCache(name);
    return code ? code : openSegment(instance, name);
}

int closeSegment(void *instance, int32_t segment)
{
    return of(instance)->closeSegment(static_cast<uint64_t>(segment));
}

int registerLocalMemory(void *instance, void *address, size_t bytes, const char *location, int remote)
{
    return of(instance)->registerLocalMemory(address, bytes, location, remote != 0, true);
}

int unregisterLocalMemory(void *instance, void *address)
{
    return of(instance)->unregisterLocalMemory(address, true);
}

uint64_t allocateBatchID(void *instance, size_t count) { return of(instance)->allocateBatchID(count); }

int submitTransfer(void *instance, uint64_t batch, const request *requests, size_t count)
{
    std::vector<Transport::TransferRequest> all(count);
    for (size_t i = 0; i < count; i++)
        all[i] = {requests[i].opcode, requests[i].source, static_cast<uint64_t>(requests[i].target),
                  requests[i].offset, requests[i].length, 0, 0, 0};
    return of(instance)->submitTransfer(batch, all).code;
}

int getTransferStatus(void *instance, uint64_t batch, size_t task, Transport::TransferStatus *status)
{
    return of(instance)->getTransferStatus(batch, task, *status).code;
}

int freeBatchID(void *instance, uint64_t batch) { return of(instance)->freeBatchID(batch).code; }
}
