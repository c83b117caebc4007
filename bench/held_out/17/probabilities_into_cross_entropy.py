"""A recurrent net that names the language (of ten) of a word from its letters. FAULT at step 0: the last layer is a softmax, and cross_entropy makes a
log_softmax of it again; what goes in is between 0 and 1, so the loss can't fall below 1.46 and the gradients are weak from the beginning.
Without Rangewatch: loss 2.30 to 1.70 at step 120 and 1.57 at the end, with 94 of 100 right; with the logits it is 0.24 at the end, with 98 of 100
right.
Cause: none of its own need be named (forward_arithmetic would do). Step: from 0 on, as soon as the loss is seen to stand. Right: softmax / logits /
twice / floor. Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["", "forward_arithmetic"], "step": [0, 219], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "[Ss]oftmax|logit|probabilit|twice|normali[sz]ed"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1609); torch.set_num_threads(1)
letters = torch.softmax(1.2 * torch.randn(10, 26), 1)  # how often each language has each letter


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(26, 16)
        self.word = nn.GRU(16, 40, batch_first=True)
        self.answer = nn.Sequential(nn.Linear(40, 10), nn.Softmax(dim=1))

    def forward(self, x):
        return self.answer(self.word(self.letter(x))[0].mean(1))


model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    language = torch.randint(0, 10, (64,))
    word = torch.multinomial(letters[language], 12, replacement=True)
    answer = model(word)
    loss = F.cross_entropy(answer, language)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "right", (answer.argmax(1) == language).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
