// A stock Go client as a receiver: go_client TARGET TOPIC COUNT
//
// Takes a backlog through one stream and prints one JSON object with the seconds it took.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

const service = "/danube.ConsumerService/"

// rawCodec hands messages over as bytes.
type rawCodec struct{}

func (rawCodec) Name() string                       { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }

func text(message []byte, field protowire.Number, value string) []byte {
	message = protowire.AppendTag(message, field, protowire.BytesType)
	return protowire.AppendString(message, value)
}

func subscribe(connection *grpc.ClientConn, topic string) (uint64, error) {
	request := text(nil, 2, topic)
	request = text(request, 3, "go")
	request = text(request, 4, fmt.Sprintf("s%d", time.Now().UnixNano()))
	request = text(request, 100, "earliest")
	var reply []byte
	if err := connection.Invoke(context.Background(), service+"Subscribe", &request, &reply); err != nil {
		return 0, err
	}
	for len(reply) > 0 {
		field, kind, size := protowire.ConsumeTag(reply)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		reply = reply[size:]
		if field == 2 {
			consumer, _ := protowire.ConsumeVarint(reply)
			return consumer, nil
		}
		size = protowire.ConsumeFieldValue(field, kind, reply)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		reply = reply[size:]
	}
	return 0, fmt.Errorf("the reply names no consumer")
}

func receive(connection *grpc.ClientConn, consumer uint64, count int) (time.Duration, error) {
	request := protowire.AppendTag(nil, 2, protowire.VarintType)
	request = protowire.AppendVarint(request, consumer)
	context, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	description := &grpc.StreamDesc{ServerStreams: true}
	stream, err := connection.NewStream(context, description, service+"ReceiveMessages")
	if err != nil {
		return 0, err
	}
	if err := stream.SendMsg(&request); err != nil {
		return 0, err
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	started := time.Now()
	var message []byte
	for range count {
		if err := stream.RecvMsg(&message); err != nil {
			return 0, err
		}
	}
	return time.Since(started), nil
}

func run(target, topic string, count int) error {
	connection, err := grpc.NewClient(
		target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30)),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	consumer, err := subscribe(connection, topic)
	if err != nil {
		return err
	}
	took, err := receive(connection, consumer, count)
	if err != nil {
		return err
	}
	fmt.Printf("{\"seconds\": %f}\n", took.Seconds())
	return nil
}

func main() {
	count, err := strconv.Atoi(os.Args[3])
	if err == nil {
		err = run(os.Args[1], os.Args[2], count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
