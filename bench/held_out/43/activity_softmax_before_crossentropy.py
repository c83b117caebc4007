"""Twelve human activities from three axes of a wrist accelerometer (1-D convnet, Adam) (the forum's evergreen: 'loss stuck, nn.CrossEntropyLoss with softmax in the model').
FAULT at step 0: forward() ends in Softmax and nn.CrossEntropyLoss applies log_softmax to these probabilities again; the loss cannot come below log(e + 11) - 1 = 1.62 and its gradients are weak.
Without Rangewatch: loss 2.49 at first, 2.44 at step 30, 1.93 at 90, then stuck at 1.62 with an accuracy of 1.00; the outputs are probabilities.
Cause: forward_arithmetic (softmax twice). Step: from 0. Right: give the logits to CrossEntropyLoss, take Softmax out. Wrong: lower the learning rate, clip, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 200], "place": None, "rank": None,
          "right": r"(?i)softmax|logits", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import math
import torch
import torch.nn as nn
import torch.optim as optim
import rangewatch

torch.manual_seed(2); torch.set_num_threads(1)
NUM_CLASSES = 12
freqs = torch.rand(NUM_CLASSES, 3) * 8 + 1
amps = torch.rand(NUM_CLASSES, 3) + 0.3
t = torch.linspace(0, 2 * math.pi, 64)


class HARNet(nn.Module):
    def __init__(self):
        super(HARNet, self).__init__()
        self.conv1 = nn.Conv1d(3, 24, 7, padding=3)
        self.conv2 = nn.Conv1d(24, 32, 5, padding=2)
        self.pool = nn.MaxPool1d(2)
        self.fc1 = nn.Linear(32 * 16, 64)
        self.fc2 = nn.Linear(64, NUM_CLASSES)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.softmax(self.fc2(x))


def next_batch(n=64):
    y = torch.randint(0, NUM_CLASSES, (n,))
    phase = torch.rand(n, 3, 1) * 2 * math.pi
    x = amps[y][:, :, None] * torch.sin(freqs[y][:, :, None] * t + phase) + 0.3 * torch.randn(n, 3, 64)
    return x, y


net = HARNet()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(net.parameters(), lr=0.001)
handle = rangewatch.attach(net, optimizer)
for step in range(300):
    inputs, labels = next_batch()
    optimizer.zero_grad()
    outputs = net(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 30 == 0 or step == 299:
        print('step %d loss: %.3f acc: %.2f' % (step, loss.item(), (outputs.argmax(1) == labels).float().mean()), flush=True)
print('Finished Training')
